"""`baton doctor` on real servers behind real routers: a good pair, and each misconfiguration that can be made here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cluster.serving import Server
from tests.soak.tiny import tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]


def doctor(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings."""
    command = [sys.executable, "-m", "baton", "doctor", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def errors(findings: list[dict[str, Any]]) -> str:
    return "\n".join(each["message"] for each in findings if each["level"] == "error")


def told(findings: list[dict[str, Any]], url: str) -> str:
    return "\n".join(each["message"] for each in findings if each["subject"] == url)


class Router(Server):
    """`baton route` on a free port of the loopback."""

    def __init__(self, *flags: str) -> None:
        super().__init__([sys.executable, "-m", "baton", "route", "--host", "127.0.0.1", "--port", "0", *flags])

    def engine(self) -> int:
        """It has none."""
        return self.process.pid


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Three servers: a pair, and one that fits neither and advertises an address where it does not listen."""
    model = str(tiny_model(tmp_path_factory.mktemp("tiny")))
    common = ["--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--max-model-len", "256"]
    common += ["--host", "127.0.0.1", "--port", "0"]
    odd = ["--transfer", "pull", "--served-model-name", "odd", "--seed", "1", "--advertise-host", "127.0.0.2"]
    flags = {
        "prefill": ["--role", "prefill", "--served-model-name", "tiny"],
        "decode": ["--role", "decode", "--transfer", "push", "--served-model-name", "tiny"],
        "odd": ["--role", "prefill", *odd],
    }
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server([sys.executable, "-m", "baton", "serve", model, *common, *given]))
            for name, given in flags.items()
        }
        yield {name: server.ready().url for name, server in servers.items()}


def test_a_good_pair(urls: dict[str, str]) -> None:
    with Router("--prefill", urls["prefill"], "--decode", urls["decode"], "--mode", "push") as router:
        code, findings = doctor(router.ready().url)
        assert (code, errors(findings)) == (0, "")
        assert "mode push with 2 workers" in told(findings, router.url)
        assert "role prefill, model tiny" in told(findings, urls["prefill"])
        assert "is open" in told(findings, urls["prefill"]) and "is open" in told(findings, urls["decode"])
        assert "All 2 servers have the same: tiny" in told(findings, "served model name")


def test_modes_names_weights_and_a_closed_side_channel(urls: dict[str, str]) -> None:
    with Router("--prefill", urls["odd"], "--decode", urls["decode"]) as router:
        code, findings = doctor(router.ready().url)
        assert code == 1
        found = errors(findings)
        assert "One runs with --transfer pull, the other with push" in found
        assert "Its served model name is tiny, that of " in found
        assert "Its fingerprint is " in found
        assert "Its side channel 127.0.0.2:" in found and "closed (connection refused)" in found


def test_roles_the_wrong_way_round(urls: dict[str, str]) -> None:
    with Router("--prefill", urls["decode"], "--decode", urls["prefill"]) as router:
        code, findings = doctor(router.ready().url)
        assert code == 1
        assert "told that its role is prefill, but it runs as decode" in told(findings, urls["decode"])
        assert "told that its role is decode, but it runs as prefill" in told(findings, urls["prefill"])


def test_a_worker_that_is_not_there(urls: dict[str, str]) -> None:
    with Router("--prefill", urls["prefill"], "--decode", "http://127.0.0.1:9") as router:
        code, findings = doctor(router.ready().url)
        assert code == 1
        assert "It does not answer (Connection refused)" in told(findings, "http://127.0.0.1:9")
        assert "No decode engine answers" in errors(findings)


def test_one_server_and_nothing_at_all(urls: dict[str, str]) -> None:
    code, findings = doctor(urls["prefill"])
    assert code == 0 and "role prefill" in told(findings, urls["prefill"])
    code, findings = doctor("http://127.0.0.1:9")
    assert code == 1 and "Connection refused" in errors(findings)


def test_this_machine_and_a_provider_that_is_missing() -> None:
    _, findings = doctor()
    assert {"python", "torch", "nixl", "shared memory", "open files", "ports", "disk"} == {
        f["subject"] for f in findings
    }
    assert "Starts over UCX" in told(findings, "nixl")
    code, findings = doctor("--nixl-backend", "NO_SUCH")
    assert code == 1
    assert "No hand-offs over NO_SUCH: this NIXL has no back end NO_SUCH" in errors(findings)
