"""Figures of hand-offs: what each transfer cost, and the transfer thread's last word."""

from __future__ import annotations

from baton.core.exchange import TransferRecord
from baton.core.handoff import TransferMode
from baton.core.stats import TransferStats
from baton.obs import buckets
from baton.obs.histogram import Histogram

NOTICE_FAILURE = "notice"
"""The kind of failure, of TransferStats.failures, that vLLM counts as a failed notification."""


class HandoffFigures:
    """Distributions over the transfers that this engine posted (the giver in push, the taker in pull).

    Attributes:
        stats: the transfer thread's latest figures.
        wire, post, exposed: seconds, as in TransferRecord.
        num_pushed: of the transfers; the others were pulled.
        early: share of bytes that left before prefill ended; only of transfers that moved any.
    """

    def __init__(self) -> None:
        self.stats = TransferStats()
        self.wire = Histogram(buckets.TRANSFER_SECONDS)
        self.post = Histogram(buckets.POST_SECONDS)
        self.num_bytes = Histogram(buckets.TRANSFER_BYTES)
        self.num_descriptors = Histogram(buckets.DESCRIPTORS)
        self.exposed = Histogram(buckets.POST_SECONDS)
        self.early = Histogram(buckets.SHARES)
        self.early_bytes = 0
        self.num_pushed = 0

    def observe(self, record: TransferRecord) -> None:
        """Count a transfer that ended."""
        self.wire.observe(record.wire_s)
        self.post.observe(record.post_s)
        self.num_bytes.observe(record.num_bytes)
        self.num_descriptors.observe(record.num_descriptors)
        self.exposed.observe(record.exposed_s)
        self.early_bytes += record.early_bytes
        self.num_pushed += record.mode is TransferMode.PUSH
        if record.num_bytes:
            self.early.observe(record.early_bytes / record.num_bytes)

    @property
    def early_share(self) -> float | None:
        """Of all bytes so far, the share that left before prefill ended; None before any."""
        return self.early_bytes / self.num_bytes.total if self.num_bytes.total else None
