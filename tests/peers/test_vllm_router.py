"""`vllm-router` before a pair of Baton servers, where it is installed: $BATON_VLLM_ROUTER names its command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.peers.questions import as_chat, as_ids, as_text
from tests.peers.vllm_router import vllm_router_rows

COMMAND = os.environ.get("BATON_VLLM_ROUTER", "")
QUESTIONS = (as_text(14), as_ids(32), as_ids(33), as_chat(10))

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not os.access(COMMAND, os.X_OK), reason="BATON_VLLM_ROUTER names no vllm-router"),
]


def test_a_pair_behind_vllm_router_answers_as_one_server_does(text_model: Path) -> None:
    """Whole and streamed; it sends ids of its own, fields that OpenAI does not have, and asks for /render first."""
    rows = list(vllm_router_rows(Path(COMMAND), text_model, QUESTIONS))
    assert len(rows) == 2 * len(QUESTIONS) + 1
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
