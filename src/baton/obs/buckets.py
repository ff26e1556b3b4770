"""Histogram bounds of vLLM 0.32 (its v1/metrics/buckets.py), so that its dashboards read our histograms."""

from __future__ import annotations

REQUEST_SECONDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""Whole requests and their phases."""

FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)

TOKEN_SECONDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
"""Between two tokens of a sequence."""

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SEQUENCES = (1, 2, 5, 10, 20)

POST_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
"""Posting a transfer, and what of it prefill does not hide."""

TRANSFER_SECONDS = POST_SECONDS[1:]
TRANSFER_BYTES = tuple(1 << power for power in range(11, 34, 2))
"""2 KiB to 8 GiB."""

DESCRIPTORS = (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def token_counts(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to max_model_len (tokens)."""
    bounds: list[int] = []
    scale = 1
    while scale <= max_model_len:
        bounds += (factor * scale for factor in (1, 2, 5) if factor * scale <= max_model_len)
        scale *= 10
    return tuple(bounds)
