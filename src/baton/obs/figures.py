"""Every figure that a server keeps of one engine: plain numbers and histograms, no metrics library."""

from __future__ import annotations

from collections import Counter

from baton.core.request import FinishReason
from baton.core.stats import EMPTY
from baton.obs import buckets
from baton.obs.handoff import HandoffFigures
from baton.obs.histogram import Histogram


class EngineFigures:
    """Counters since the start, the scheduler's last word, and distributions.

    Token counts and seconds; one observation a sequence, except where said.

    Args:
        max_model_len: last bound of token-count histograms.
        hands_over: the engine has a peer.

    Attributes:
        stats: the scheduler's latest figures.
        prompt_tokens: of requests whose prefill is over, cached ones included; once a request.
        cached_tokens: of these, taken from the prefix cache.
        received_tokens: of these, taken from another engine.
        success: sequences by how they ended.
        inter_token: one observation a token after the first.
        params_n, prompt: one a request.
        step_tokens: tokens through the model, one a step.
        handoff: None without a peer.
    """

    def __init__(self, max_model_len: int, *, hands_over: bool = False) -> None:
        tokens = buckets.token_counts(max_model_len)
        self.stats = EMPTY
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.received_tokens = 0
        self.generation_tokens = 0
        self.success: Counter[FinishReason] = Counter(dict.fromkeys(FinishReason, 0))
        self.rejections: Counter[str] = Counter(max_num_queued_reqs=0)
        self.first_token = Histogram(buckets.FIRST_TOKEN_SECONDS)
        self.inter_token = Histogram(buckets.TOKEN_SECONDS)
        self.per_token = Histogram(buckets.TOKEN_SECONDS)
        self.whole = Histogram(buckets.REQUEST_SECONDS)
        self.queue = Histogram(buckets.REQUEST_SECONDS)
        self.inference = Histogram(buckets.REQUEST_SECONDS)
        self.prefill = Histogram(buckets.REQUEST_SECONDS)
        self.decode = Histogram(buckets.REQUEST_SECONDS)
        self.prompt = Histogram(tokens)
        self.generation = Histogram(tokens)
        self.prefill_computed = Histogram(tokens)
        self.params_n = Histogram(buckets.SEQUENCES)
        self.params_max_tokens = Histogram(tokens)
        self.max_generation = Histogram(tokens)
        self.step_tokens = Histogram(buckets.STEP_TOKENS)
        self.handoff = HandoffFigures() if hands_over else None

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that ran through this engine's model."""
        return self.prompt_tokens - self.cached_tokens - self.received_tokens

    @property
    def kv_use(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return self.stats.used_blocks / self.stats.total_blocks if self.stats.total_blocks else 0.0

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of queried prompt tokens found in the prefix cache since the engine's start; None before any query."""
        queried = self.stats.prefix_query_tokens
        return self.stats.prefix_hit_tokens / queried if queried else None
