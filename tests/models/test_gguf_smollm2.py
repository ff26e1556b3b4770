"""SmolLM2-135M-Instruct (Q4_1, embeddings Q8_0): names, values and row order against transformers' model class."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from baton.core.model_config import ModelConfig
from baton.models.gguf import gguf_config, gguf_weights

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def path() -> Path:
    """$BATON_SMOLLM2, or ~/.cache/baton/ where scripts put it."""
    named = os.environ.get("BATON_SMOLLM2")
    found = [Path(named)] if named else sorted(Path("~/.cache/baton").expanduser().rglob("SmolLM2-135M*.gguf"))
    if not found:
        pytest.skip("SmolLM2 GGUF not there; scripts/test gets it, or set BATON_SMOLLM2")
    return found[0]


@pytest.fixture(scope="module")
def config(path: Path) -> ModelConfig:
    return gguf_config(path)


def test_config(config: ModelConfig) -> None:
    """config.json of HuggingFaceTB/SmolLM2-135M-Instruct."""
    assert config.architecture == "LlamaForCausalLM"
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (576, 1536, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.vocab_size, config.max_context, config.rope.theta) == (49152, 8192, 100000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings
    assert 2 in config.eos_token_ids


def test_weights_against_the_library_reader(path: Path, config: ModelConfig) -> None:
    """Every parameter of transformers' LlamaForCausalLM is there with its shape, and holds the stored values.

    Values are compared in three layers and outside of layers; names and shapes everywhere. q and k must differ from
    the stored rows exactly by the order within a head: stored row 2i is row i, stored row 2i + 1 is row i + half.
    """
    with torch.device("meta"):
        oracle = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=576,
                intermediate_size=1536,
                num_hidden_layers=30,
                num_attention_heads=9,
                num_key_value_heads=3,
                vocab_size=49152,
                tie_word_embeddings=True,
            )
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in oracle.state_dict().items() if name != "lm_head.weight"}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    seen = set()
    for name, ours in gguf_weights(path, config):
        assert tuple(ours.shape) == shapes[name]
        seen.add(name)
        if ".layers." in name and int(name.split(".")[2]) not in (0, 13, 29):
            continue
        base, _, suffix = name.rpartition(".")
        tensor = tensors[f"{names.get_name(base)}.{suffix}"]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if base.endswith(("q_proj", "k_proj")):
            heads = expected.reshape(-1, 64, 576)
            expected = np.concatenate([heads[:, 0::2], heads[:, 1::2]], axis=1).reshape(expected.shape)
        assert np.array_equal(ours.numpy(), expected), name
    assert seen == shapes.keys()


@pytest.mark.slow
def test_weights_equal_transformers_own_loading(path: Path, config: ModelConfig) -> None:
    """transformers reads GGUF itself where accelerate is installed."""
    pytest.importorskip("accelerate")
    oracle = LlamaForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = oracle.state_dict()
    for name, tensor in gguf_weights(path, config):
        assert torch.equal(tensor, expected[name]), name
