"""One server for the tests that only ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, byte_tokenizer, run_server


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer(tmp_path_factory.mktemp("server") / "tokenizer")


@pytest.fixture(scope="session")
def server(tokenizer_folder: Path) -> Iterator[Server]:
    """A stub engine behind the real application, served as MODEL and alias, max_model_len 2048."""
    with run_server(tokenizer_folder) as running:
        yield running
