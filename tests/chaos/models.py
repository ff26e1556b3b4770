"""The model of the chaos tests, and the engines that run it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.chaos.asks import MODEL_LEN
from tests.soak.tiny import tiny_model

FLOAT32 = ("--load-format", "dummy", "--dtype", "float32", "--device", "cpu")
"""The same tokens in every batch."""
SMALL = (
    *("--max-model-len", str(MODEL_LEN), "--max-num-seqs", "6"),
    *("--kv-cache-tokens", "1280", "--max-num-batched-tokens", "64"),
)
"""So little that requests queue and sequences are preempted."""


def chaos_model(folder: Path) -> Path:
    """The tiny model, with weights so large that wrong KV shows in the tokens."""
    path = tiny_model(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "initializer_range": 0.2}))
    return folder
