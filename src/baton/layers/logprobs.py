"""Log-probabilities of chosen and of most likely tokens, from raw logits.

Shape letters: Q rows that want them, V vocabulary, K most likely tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.request import TokenLogprobs
from baton.kernels.sampling import order_keys

_CHUNK_ELEMENTS = 1 << 23  # bounds the float32 and int64 copies of a chunk to about 100 MB together


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTensors:
    """Log-probabilities of Q tokens.

    Attributes:
        token_ids: int64 [Q].
        logprobs: float32 [Q], natural logarithms.
        ranks: int64 [Q], 1 + number of tokens with a greater logit.
        top_ids, top_logprobs: int64, float32 [Q, K], best first; of equal ones the lower id first.
    """

    token_ids: Tensor
    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def to_host(self) -> LogprobTensors:
        """Copies in host memory. From a CUDA device they are pinned and still arriving: synchronise before reading."""
        return LogprobTensors(
            token_ids=to_host(self.token_ids),
            logprobs=to_host(self.logprobs),
            ranks=to_host(self.ranks),
            top_ids=to_host(self.top_ids),
            top_logprobs=to_host(self.top_logprobs),
        )

    def to_values(self, counts: Sequence[int]) -> tuple[TokenLogprobs, ...]:
        """As values; counts [Q] <= K is how many top entries each one reports. Synchronises if on a device."""
        columns = zip(
            self.token_ids.tolist(),
            self.logprobs.tolist(),
            self.ranks.tolist(),
            self.top_ids.tolist(),
            self.top_logprobs.tolist(),
            counts,
            strict=True,
        )
        return tuple(
            TokenLogprobs(
                token_id=token, logprob=logprob, rank=rank, top=tuple(zip(ids[:count], logprobs[:count], strict=True))
            )
            for token, logprob, rank, ids, logprobs, count in columns
        )


def token_logprobs(logits: Tensor, token_ids: Tensor, k: int) -> LogprobTensors:
    """Log-probabilities under raw logits [Q, V] of token_ids int64 [Q] and of the k most likely tokens.

    Serves prompt logprobs too: logits of a chunk, and the tokens that follow each of its positions. Works through
    the rows in pieces of bounded memory. Ranks and order come from the logits, so rounding in the logarithm cannot
    put a less likely token first.
    """
    k = min(k, logits.shape[-1])
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[-1])
    pieces = [_piece(logits[i : i + rows], token_ids[i : i + rows], k) for i in range(0, max(1, logits.shape[0]), rows)]
    if len(pieces) == 1:
        return pieces[0]
    return LogprobTensors(
        token_ids=token_ids,
        logprobs=torch.cat([p.logprobs for p in pieces]),
        ranks=torch.cat([p.ranks for p in pieces]),
        top_ids=torch.cat([p.top_ids for p in pieces]),
        top_logprobs=torch.cat([p.top_logprobs for p in pieces]),
    )


def _piece(logits: Tensor, token_ids: Tensor, k: int) -> LogprobTensors:
    logits = logits.to(torch.float32)
    logprobs = logits.log_softmax(-1)
    chosen = token_ids[:, None]
    top_ids = order_keys(logits).topk(k, dim=-1).indices if k > 0 else token_ids.new_empty(logits.shape[0], 0)
    return LogprobTensors(
        token_ids=token_ids,
        logprobs=logprobs.gather(1, chosen)[:, 0],
        ranks=(logits > logits.gather(1, chosen)).sum(-1) + 1,
        top_ids=top_ids,
        top_logprobs=logprobs.gather(1, top_ids),
    )


def to_host(tensor: Tensor) -> Tensor:
    """Copy to host memory without waiting for the device (pinned; synchronise before reading). CPU: as it is."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
