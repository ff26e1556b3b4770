"""Tiny models saved by transformers, and a hand-made cache that runs ours in any chunking and batching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig

from baton.core.config import LoadFormat
from baton.kernels.interface import AttentionBatch, Kernels, PrefillSpan
from baton.kernels.torch_twin import TorchKernels
from baton.layers.context import ForwardContext
from baton.models.loader import LoadedModel, load_model

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 256,
}


def save_oracle(folder: Path, config: PreTrainedConfig, **save: Any) -> Any:
    """A transformers model with seeded weights (biases and norms too), written to the folder and returned."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than the usual 0.02, so that attention and routing are far from uniform.
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2)
    model.save_pretrained(folder, **save)
    return model


def load(folder: Path, **changes: Any) -> LoadedModel:
    """Our model on the CPU, in float32 and with the twin's kernels unless `changes` says otherwise."""
    arguments = {"dtype": "float32", "load_format": LoadFormat.AUTO, "kernels": TorchKernels(), **changes}
    return load_model(folder, device="cpu", **arguments)


def prompt(length: int, seed: int = 1, vocab: int = TINY["vocab_size"]) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (length,), generator=generator).tolist()


@dataclass
class Cache:
    """A pool filled with NaN, whose shuffled blocks are given to sequences as they grow."""

    loaded: LoadedModel
    kernels: Kernels = field(default_factory=TorchKernels)
    num_blocks: int = 64
    block_tokens: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        (spec,) = self.loaded.model.cache_specs()
        shape = (self.num_blocks, spec.num_kv_heads, spec.num_layers, 2, self.block_tokens, spec.head_dim)
        self.kv = torch.full(shape, torch.nan, dtype=self.loaded.dtype)
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(self.seed))
        self.free = order.tolist()
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def step(self, parts: Sequence[tuple[int, list[int]]]) -> list[Tensor]:
        """Append tokens to sequences in one forward; logits of every token, [tokens, vocab] per part.

        Single tokens that continue a sequence must come first, as in a real step.
        """
        starts = [self.lengths.get(sequence, 0) for sequence, _ in parts]
        for (sequence, tokens), start in zip(parts, starts, strict=True):
            self._grow(sequence, start + len(tokens))
        ids = torch.tensor([token for _, tokens in parts for token in tokens])
        places = [
            (sequence, start + i)
            for (sequence, tokens), start in zip(parts, starts, strict=True)
            for i in range(len(tokens))
        ]
        context = ForwardContext(
            positions=torch.tensor([place for _, place in places]),
            attention=self._batch(parts, starts, places),
            kv=self.kv,
            kernels=self.kernels,
        )
        with torch.inference_mode():
            model = self.loaded.model
            logits = model.logits(model.forward(ids, context))
        return list(logits.split([len(tokens) for _, tokens in parts]))

    def run(self, tokens: list[int], chunk: int, sequence: int = 0) -> Tensor:
        """Logits [len(tokens), vocab] of one sequence fed in chunks."""
        pieces = [tokens[i : i + chunk] for i in range(0, len(tokens), chunk)]
        return torch.cat([self.step([(sequence, piece)])[0] for piece in pieces])

    def _grow(self, sequence: int, length: int) -> None:
        table = self.tables.setdefault(sequence, [])
        while len(table) * self.block_tokens < length:
            table.append(self.free.pop())
        self.lengths[sequence] = length

    def _batch(
        self, parts: Sequence[tuple[int, list[int]]], starts: list[int], places: list[tuple[int, int]]
    ) -> AttentionBatch:
        decodes = [p for p, start in zip(parts, starts, strict=True) if len(p[1]) == 1 and start > 0]
        assert list(parts[: len(decodes)]) == decodes, "decodes come first"
        size = self.block_tokens
        tables = [self.tables[sequence] for sequence, _ in decodes]
        width = max(map(len, tables), default=0)
        lens = torch.tensor([start + 1 for start in starts[: len(decodes)]], dtype=torch.int64)
        mask = torch.arange(width * size)[None, :] < lens[:, None]
        spans, row = [], len(decodes)
        for (sequence, tokens), start in list(zip(parts, starts, strict=True))[len(decodes) :]:
            blocks = torch.tensor(self.tables[sequence])
            spans.append(PrefillSpan(first_row=row, num_tokens=len(tokens), start=start, block_ids=blocks))
            row += len(tokens)
        return AttentionBatch(
            num_decodes=len(decodes),
            write_blocks=torch.tensor([self.tables[sequence][place // size] for sequence, place in places]),
            write_offsets=torch.tensor([place % size for _, place in places]),
            decode_blocks=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int64).view(
                len(decodes), width
            ),
            decode_lens=lens,
            decode_mask=mask[:, None, None, :],
            prefills=tuple(spans),
        )
