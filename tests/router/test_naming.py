"""Workers by the words of a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.core.errors import ConfigError
from baton.core.handoff import Role, TransferMode
from baton.router.naming import clean_url, named_workers


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1"),
        (" http://H.Example:8000/ ", "http://h.example:8000"),
        ("https://h", "https://h"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls(given: str, url: str) -> None:
    assert clean_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "",
        "h",
        "h:1",
        "http://",
        "http://:1",
        "http://h:0",
        "http://h:x",
        "http://h:70000",
        "http://[::1",
        "http://h/v1",
    ],
)
def test_what_is_no_url_of_a_worker(given: str) -> None:
    with pytest.raises(ConfigError, match="write http://HOST:PORT"):
        clean_url(given)


def test_a_command_line_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    file.write_text('[{"url": "http://x:1", "role": "prefill", "transfer_mode": "push", "api_key": "k"}]')
    specs = named_workers(["http://p:1", "http://p:2"], ["http://d:1"], ["http://m:1"], file)
    roles = [(spec.url, spec.role) for spec in specs]
    assert roles[:4] == [
        ("http://p:1", Role.PREFILL),
        ("http://p:2", Role.PREFILL),
        ("http://d:1", Role.DECODE),
        ("http://m:1", None),
    ]
    assert (specs[4].url, specs[4].transfer_mode, specs[4].api_key) == ("http://x:1", TransferMode.PUSH, "k")


def test_a_worker_that_is_named_twice() -> None:
    with pytest.raises(ConfigError, match="named twice"):
        named_workers(["http://h:1"], ["http://H:1/"], [])


@pytest.mark.parametrize("text", [None, "", "{}", '[{"role": "prefill"}]', '[{"url": "http://h:1", "role": "x"}]'])
def test_a_file_that_is_not_one(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "workers.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"workers\.json"):
        named_workers([], [], [], file)
