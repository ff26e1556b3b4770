"""A tiny Llama of random weights over a byte vocabulary, served by `baton serve`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cluster.serving import Server
from tests.server.harness import END, START, VOCAB, byte_tokenizer

_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": START,
    "eos_token_id": END,
}


def tiny_model(folder: Path) -> Path:
    """Write config and tokenizer; the weights come with --load-format dummy."""
    byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    return folder


def tiny_server(folder: Path, *flags: str) -> Server:
    """A `baton serve` process on a free port of 127.0.0.1 with that model, served as MODEL."""
    return baton_serve(str(tiny_model(folder)), "--load-format", "dummy", *flags)


def baton_serve(model: str, *flags: str) -> Server:
    """`baton serve` on a free port of 127.0.0.1, the model served as MODEL."""
    command = [sys.executable, "-m", "baton", "serve", model, "--host", "127.0.0.1", "--port", "0"]
    return Server([*command, "--served-model-name", "MODEL", "--device", "cpu", *flags])
