"""The device under test, and a tiny model with a tokenizer for tests of the Python front."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DEVICE = os.environ.get("BATON_TEST_DEVICE", "cpu")

BYTES = 256
END, START = 256, 257
VOCAB = 260


@pytest.fixture(scope="session")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded Llama over a byte vocabulary (token id = place in the byte-level alphabet), with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    from tests.models.harness import TINY, save_oracle

    folder = tmp_path_factory.mktemp("text-model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<start>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", bos_token="<start>")
    tokenizer.chat_template = (
        "{% for m in messages %}<start>{{ m['role'] }}: {{ m['content'] }}<end>{% endfor %}"
        "{% if add_generation_prompt %}<start>assistant: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(**{**TINY, "vocab_size": VOCAB}, eos_token_id=END, bos_token_id=START)
    save_oracle(folder, config)
    return folder
