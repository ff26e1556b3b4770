"""Linear layers, embedding and output head cut over tensor-parallel ranks.

Every layer is made empty with this rank's shape, filled by `load*` from full checkpoint tensors, and closed by
`finalize`, which gives the weight to the kernels (they may repack it; the layer keeps no second copy).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.core.errors import ModelError
from baton.kernels.interface import Kernels, LinearOp
from baton.layers.shard import Shard


class Linear:
    """x [.., inputs] -> [.., outputs] with this rank's weight; the classes below say what that is."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype, device: torch.device) -> None:
        self.weight: Tensor | None = torch.empty(outputs, inputs, dtype=dtype, device=device)
        self.bias: Tensor | None = torch.empty(outputs, dtype=dtype, device=device) if bias else None
        self._op: LinearOp | None = None

    def finalize(self, kernels: Kernels) -> None:
        """Call once, after loading and before the first forward."""
        assert self.weight is not None
        self._op = kernels.linear(self.weight, self.bias)
        self.weight = self.bias = None

    def __call__(self, x: Tensor) -> Tensor:
        assert self._op is not None, "forward before finalize"
        return self._op(x)

    def _fill(self, kind: str, first_row: int, part: Tensor) -> None:
        """Copy a part of the weight or bias to its rows."""
        target = self.weight if kind == "weight" else self.bias
        assert target is not None
        target[first_row : first_row + part.shape[0]].copy_(part)


class MergedColumnLinear(Linear):
    """Several projections of one input as one product, each cut by output rows.

    Args:
        outputs: full rows of each projection.
        copies: for each projection, how many neighbouring ranks hold the same rows (KV heads fewer than ranks).
    """

    def __init__(
        self,
        inputs: int,
        outputs: dict[str, int],
        *,
        copies: dict[str, int] | None = None,
        bias: bool,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._shards = {}
        self.sizes: dict[str, int] = {}
        for name, rows in outputs.items():
            share = (copies or {}).get(name, 1)
            cut = Shard(shard.rank // share, shard.size // share)
            self._shards[name] = cut
            self.sizes[name] = cut.split(rows, f"rows of {name}")
        super().__init__(inputs, sum(self.sizes.values()), bias=bias, dtype=dtype, device=device)

    def load(self, part: str, kind: str, tensor: Tensor) -> None:
        """Keep this rank's rows of projection `part`; kind is "weight" or "bias", tensor the full one."""
        first = 0
        for name, size in self.sizes.items():
            if name == part:
                break
            first += size
        self._fill(kind, first, self._shards[part].part(tensor, 0))


class ColumnLinear(MergedColumnLinear):
    """One projection cut by output rows; its result is this rank's part."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(inputs, {"only": outputs}, bias=bias, shard=shard, dtype=dtype, device=device)


class QkvLinear(MergedColumnLinear):
    """Query, key and value projections as one product.

    With more ranks than KV heads each KV head lives on size / num_kv_heads neighbouring ranks, next to the query
    heads that read it.
    """

    def __init__(
        self,
        inputs: int,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        copies = kv_copies(num_kv_heads, shard)
        shard.split(num_heads, "num_attention_heads")
        shard.split(num_kv_heads * copies, "num_key_value_heads")
        super().__init__(
            inputs,
            {"q": num_heads * head_dim, "k": num_kv_heads * head_dim, "v": num_kv_heads * head_dim},
            copies={"k": copies, "v": copies},
            bias=bias,
            shard=shard,
            dtype=dtype,
            device=device,
        )


def kv_copies(num_kv_heads: int, shard: Shard) -> int:
    """Ranks that hold the same KV head: 1 unless there are more ranks than KV heads."""
    return max(1, shard.size // num_kv_heads)


class RowLinear(Linear):
    """One projection cut by input columns; results are summed over ranks."""

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shard = shard
        # The bias must enter the sum once.
        super().__init__(
            shard.split(inputs, "columns"), outputs, bias=bias and shard.rank == 0, dtype=dtype, device=device
        )

    def load(self, kind: str, tensor: Tensor) -> None:
        """Keep this rank's columns of the full weight, or the bias on rank 0."""
        if kind == "weight":
            self._fill(kind, 0, self._shard.part(tensor, 1))
        elif self.bias is not None:
            self._fill(kind, 0, tensor)

    def __call__(self, x: Tensor) -> Tensor:
        """x [.., this rank's inputs] -> [.., outputs], complete."""
        return self._shard.all_reduce(super().__call__(x))


class VocabEmbedding:
    """Token embedding cut by rows of the vocabulary, padded to equal shares with zero rows."""

    def __init__(self, vocab: int, width: int, *, shard: Shard, dtype: torch.dtype, device: torch.device) -> None:
        self._shard = shard
        self._share = -(-vocab // shard.size)
        self.weight = torch.zeros(self._share, width, dtype=dtype, device=device)

    def load(self, tensor: Tensor) -> None:
        """Keep this rank's rows of the full [vocab, width] tensor."""
        _load_vocab_rows(self.weight, tensor, self._shard)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """int64 [T] -> [T, width]."""
        if self._shard.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self._shard.rank * self._share
        mine = (local >= 0) & (local < self._share)
        rows = F.embedding(local.clamp(0, self._share - 1), self.weight)
        return self._shard.all_reduce(rows.masked_fill_(~mine[:, None], 0))


class LmHead:
    """Hidden rows to logits, cut by rows of the vocabulary like `VocabEmbedding`.

    Args:
        tied: the embedding whose weight is used; a weight of its own is then only compared to it.
    """

    def __init__(
        self,
        vocab: int,
        width: int,
        *,
        tied: VocabEmbedding | None,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._vocab = vocab
        self._shard = shard
        self._tied = tied
        share = -(-vocab // shard.size)
        self.weight: Tensor | None = None if tied else torch.zeros(share, width, dtype=dtype, device=device)
        self._op: LinearOp | None = None

    def load(self, tensor: Tensor) -> None:
        """Keep this rank's rows of the full [vocab, width] tensor."""
        if self.weight is None:
            assert self._tied is not None
            self.weight = torch.zeros_like(self._tied.weight)
        _load_vocab_rows(self.weight, tensor, self._shard)

    def finalize(self, kernels: Kernels) -> None:
        """Call once, after loading; the embedding must be loaded too when tied.

        Raises:
            ModelError: the checkpoint ties the head to the embedding but carries a different head.
        """
        weight = self.weight
        if self._tied is not None:
            if weight is not None and not torch.equal(weight, self._tied.weight):
                raise ModelError("lm_head.weight differs from the embedding; set tie_word_embeddings to false")
            weight = self._tied.weight
        assert weight is not None
        self._op = kernels.linear(weight, None)
        self.weight = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """[rows, width] -> float32 [rows, vocab], the same on every rank."""
        assert self._op is not None, "forward before finalize"
        logits = self._shard.all_gather(self._op(hidden))
        return logits[:, : self._vocab].float() if self._shard.group else logits.float()


def _load_vocab_rows(target: Tensor, tensor: Tensor, shard: Shard) -> None:
    """Copy this rank's rows of a full tensor; rows past the vocabulary stay zero."""
    share = target.shape[0]
    rows = tensor[shard.rank * share : (shard.rank + 1) * share]
    target[: rows.shape[0]].copy_(rows)
