"""`baton up` with real engines, a real router, real deaths and real signals."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cluster.serving import alive, until
from tests.cluster.upping import BODY, Up
from tests.soak.tiny import tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_fleet_serves_through_deaths_and_ends_by_ctrl_c(model: Path, tmp_path: Path) -> None:
    with Up(model, tmp_path) as up:
        up.ready()
        table = "".join(up.stdout)
        for word in ("prefill-0", "decode-0", "router", up.url, str(up.find("serve", "decode")), str(tmp_path)):
            assert word in table
        expected = up.complete().json()["choices"][0]["text"]
        # The engine alone: its server starts another. A server: both are started anew. The router: on its own port.
        for victim in (up.engine("decode"), up.find("serve", "prefill"), up.find("route")):
            os.kill(victim, signal.SIGKILL)
            until(lambda victim=victim: not alive(victim))
            up.answers(expected)
            up.look()
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(20) == 0
        assert up.gone()
        assert "prefill-0 ended (killed by signal SIGKILL)" in up.stderr()
        assert {path.name for path in tmp_path.iterdir()} == {"prefill-0.log", "decode-0.log", "router.log"}


def test_killing_it_leaves_no_process(model: Path, tmp_path: Path) -> None:
    with Up(model, tmp_path, "--mode", "pull", "--decode", "2") as up:
        up.ready()
        assert up.complete().status_code == 200
        assert len(up.look()) >= 7  # a router; a server and an engine, three times
        up.process.kill()
        until(up.gone, 3.0)


def test_a_drain_lets_requests_end_and_a_second_signal_does_not(model: Path, tmp_path: Path) -> None:
    with Up(model, tmp_path) as up, ThreadPoolExecutor(1) as threads:
        up.ready()
        lines: list[str] = []

        def read() -> None:
            body = BODY | {"max_tokens": 8000, "stream": True}
            with httpx.stream("POST", f"{up.url}/v1/completions", json=body) as answer:
                lines.extend(answer.iter_lines())

        reading = threads.submit(read)
        until(lambda: len(lines) > 4)
        up.process.send_signal(signal.SIGTERM)
        num_lines = len(lines)
        until(lambda: len(lines) > num_lines + 8)  # it drains: the request goes on
        up.process.send_signal(signal.SIGTERM)
        assert up.process.wait(5) == 1
        until(up.gone, 3.0)  # engines end with their servers, by the kernel
        with pytest.raises(httpx.RemoteProtocolError):
            reading.result(5)


@pytest.mark.parametrize(
    ("path", "flags", "message"),
    [
        ("/nowhere/at/all", (), "-0: /nowhere/at/all does not exist"),
        ("/nowhere", ("--prefill", "0"), "baton: --prefill must be at least 1"),
        ("/nowhere", ("--", "--no-such-flag"), "No such option: --no-such-flag"),
    ],
)
def test_a_start_that_cannot_be_is_one_line(path: str, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with Up(Path(path), tmp_path, *flags) as up:
        assert up.process.wait(60) == 2
        assert message in up.stderr().splitlines()[-1]
        assert "Traceback" not in up.stderr()
        assert up.gone()
