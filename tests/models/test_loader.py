"""Loading: files in, model out, and a clear refusal for everything that does not fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3MoeConfig

from baton.core.config import LoadFormat
from baton.core.errors import ConfigError, ModelError
from baton.kernels.interface import LinearOp
from baton.kernels.torch_twin import TorchKernels
from baton.layers.shard import Shard
from baton.models.loader import resolve_format
from tests.models.harness import TINY, Cache, load, prompt, save_oracle

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied Llama in one file."""
    folder = tmp_path_factory.mktemp("llama")
    save_oracle(folder, LlamaConfig(**TINY, tie_word_embeddings=True))
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    """Replace or add tensors; None takes one out."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def logits(folder: Path, **changes: Any) -> Tensor:
    return Cache(load(folder, **changes)).run(prompt(20), 20)


def test_sharded_folder_gives_the_same_model(saved: Path, tmp_path: Path) -> None:
    save_oracle(tmp_path, LlamaConfig(**TINY, tie_word_embeddings=True), max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert torch.equal(logits(tmp_path), logits(saved))


def test_defaults_come_from_the_config(folder: Path) -> None:
    edit_config(folder, dtype="bfloat16")
    loaded = load(folder, dtype="auto")
    assert (loaded.dtype, loaded.max_model_len) == (torch.bfloat16, 256)
    assert load(folder, max_model_len=40).max_model_len == 40


def test_head_of_a_tied_model_may_be_stored_if_it_is_the_embedding(folder: Path, saved: Path) -> None:
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    edit_weights(folder, {"lm_head.weight": embedding.clone()})
    assert torch.equal(logits(folder), logits(saved))
    edit_weights(folder, {"lm_head.weight": embedding + 1})
    with pytest.raises(ModelError, match=r"lm_head.weight differs from the embedding"):
        load(folder)


def test_stored_rope_frequencies_are_ignored(folder: Path, saved: Path) -> None:
    edit_weights(folder, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert torch.equal(logits(folder), logits(saved))


def test_missing_tensors_are_named(folder: Path) -> None:
    edit_weights(folder, {"model.norm.weight": None, "model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ModelError, match=r"lacks model.layers.1.mlp.up_proj.weight, model.norm.weight$"):
        load(folder)


def test_long_lists_are_cut(folder: Path) -> None:
    edit_weights(folder, {f"model.x{i}": torch.zeros(1) for i in range(9)})
    with pytest.raises(ModelError, match=r"does not use: model.x0, .* and 4 more"):
        load(folder)


def test_missing_expert_is_named(tmp_path: Path) -> None:
    save_oracle(
        tmp_path, Qwen3MoeConfig(**TINY, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    )
    edit_weights(tmp_path, {"model.layers.1.mlp.experts.3.gate_proj.weight": None})
    with pytest.raises(ModelError, match=r"lacks model.layers.1.mlp.experts.3.gate_proj.weight$"):
        load(tmp_path)


def test_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    edit_config(folder, intermediate_size=80)
    with pytest.raises(ModelError, match=r"proj.weight has shape \[.*96.*\], config.json implies \[.*80.*\]"):
        load(folder)


def test_quantised_tensors_are_refused(folder: Path) -> None:
    edit_weights(folder, {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(ModelError, match=r"model.norm.weight is torch.int8"):
        load(folder)


def test_damaged_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ModelError, match=r"cannot read .*model.safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "model-00001.safetensors"}}, r"lacks weight files: model-00001.safetensors"),
        ({"weight_map": {"a": "../model.safetensors"}}, r"points outside its folder: ../model.safetensors"),
        ({}, r"has no weight_map"),
    ],
)
def test_bad_index(folder: Path, index: dict[str, Any], words: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=words):
        load(folder)


def test_folder_without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        load(folder)


def test_paths_that_hold_no_model(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*nowhere"):
        load(folder / "nowhere")
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config.json must hold a JSON object"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json is not JSON"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"has no config.json"):
        load(folder)


def test_formats_must_fit_the_path(folder: Path) -> None:
    gguf = folder / "model.gguf"
    gguf.write_bytes(b"GGUF")
    assert resolve_format(gguf, LoadFormat.AUTO) is LoadFormat.GGUF
    assert resolve_format(folder, LoadFormat.AUTO) is LoadFormat.SAFETENSORS
    with pytest.raises(ModelError, match=r"gguf needs a .gguf file"):
        resolve_format(folder, LoadFormat.GGUF)
    with pytest.raises(ModelError, match=r"safetensors needs a model folder"):
        resolve_format(gguf, LoadFormat.SAFETENSORS)


def test_options_that_do_not_fit(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"dtype 'int8' is not supported; supported: auto, float32"):
        load(folder, dtype="int8")
    with pytest.raises(ConfigError, match=r"max_model_len must be 1 to 256 for this model, got 257"):
        load(folder, max_model_len=257)
    with pytest.raises(ConfigError, match=r"num_attention_heads=4 cannot be split over tensor_parallel_size=3"):
        load(folder, shard=Shard(0, 3))


def test_dummy_weights_need_only_a_config(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    one, same, other = (logits(folder, load_format=LoadFormat.DUMMY, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)
    assert one.isfinite().all()


class CountingKernels(TorchKernels):
    """Remembers the weights it was given."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        self.shapes.append(tuple(weight.shape))
        return super().linear(weight, bias)


def test_projections_are_fused(saved: Path) -> None:
    kernels = CountingKernels()
    load(saved, kernels=kernels)
    layer = [((4 + 2 + 2) * 16, 64), (64, 64), (2 * 96, 64), (64, 96)]
    assert kernels.shapes == layer * 2 + [(131, 64)]
