"""A model, and requests with their right answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.answers import Answer
from tests.chaos.asks import Ask, draw_asks
from tests.chaos.models import chaos_model
from tests.chaos.references import right_answers
from tests.chaos.report import Judged, judge_all
from tests.chaos.verdicts import Downtime, Seen

NUM_ASKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Requests, and their right answers by number."""

    asks: Sequence[Ask]
    right: dict[int, Answer]

    def judge(self, seen: Sequence[Seen]) -> Judged:
        """The verdicts, with a router that was never down."""
        return judge_all(seen, {ask.number: ask for ask in self.asks}, self.right, Downtime())


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chaos_model(tmp_path_factory.mktemp("chaos-model"))


@pytest.fixture(scope="session")
def known(model: Path) -> Known:
    asks = draw_asks(1, NUM_ASKS)
    return Known(asks=asks, right=right_answers(model, asks))
