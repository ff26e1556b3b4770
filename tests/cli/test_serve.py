"""`baton serve` with a tiny real model: both processes, the flags of both, and the same tokens as the Python front."""

from __future__ import annotations

import signal
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import typer.testing

from baton.cli import handoff_options, server_options
from baton.cli.main import app
from baton.engine.handoff_options import HandoffOptions
from baton.server.config import ServerConfig
from tests.cluster.serving import Server


def test_every_server_option_has_a_flag() -> None:
    assert set(server_options.FLAGS) == {field.name for field in fields(ServerConfig)}
    assert set(handoff_options.FLAGS) == {field.name for field in fields(HandoffOptions)}
    help_text = (
        typer.testing.CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    )
    for flag in (*server_options.FLAGS.values(), *handoff_options.FLAGS.values()):
        assert flag.name in help_text
    for name in ("--restart-engine", "--log-stats", "--otlp-traces-endpoint", "--max-model-len", "--peer-secret"):
        assert name in help_text


def serve(*arguments: str) -> Server:
    return Server([sys.executable, "-m", "baton", "serve", *arguments])


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_model_is_served_with_the_tokens_of_the_python_front(text_model: Path, tmp_path: Path) -> None:
    import httpx

    from baton.core.sampling import SamplingParams
    from baton.engine.llm import LLM

    with LLM(text_model, device="cpu") as llm:
        (expected,) = llm.generate("Once", SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True))
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    flags = ("--host", "127.0.0.1", "--port", "0", "--device", "cpu", "--served-model-name", "tiny")
    flags += ("--served-model-name", "alias", "--api-key", "secret", "--chat-template", str(template), "--log-stats")
    with serve(str(text_model), *flags) as server:
        server.ready()
        key = {"Authorization": "Bearer secret"}
        assert httpx.get(server.url + "/v1/models").status_code == 401
        names = [m["id"] for m in httpx.get(server.url + "/v1/models", headers=key).json()["data"]]
        assert names[0] == "tiny" and "alias" in names
        body = {"model": "alias", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(server.url + "/v1/completions", json=body | {"prompt": "Once"}, headers=key).json()
        assert answer["choices"][0]["text"] == expected.text
        # The template renders this conversation to the same prompt.
        chat = body | {"messages": [{"role": "user", "content": "Once"}]}
        answer = httpx.post(server.url + "/v1/chat/completions", json=chat, headers=key).json()
        assert answer["choices"][0]["message"]["content"] == expected.text
        server.process.send_signal(signal.SIGINT)
        assert server.exit() == 0
        assert "KV cache:" in server.stderr()  # the engine's log


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("/nowhere/at/all",), "/nowhere/at/all"),
        (("/nowhere", "--port", "99999"), "port must be between"),
        (("/nowhere", "--dtype", "int3"), "dtype must be one of"),
        (("/nowhere", "--chat-template", "/no/file"), "cannot read --chat-template /no/file"),
    ],
)
def test_what_the_user_can_mend_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    with serve(*arguments, *(() if "--port" in arguments else ("--port", "0"))) as server:
        assert server.exit(30) == 2
        lines = server.stderr().splitlines()
        assert lines[-1].startswith("baton: ") and message in lines[-1]
        assert "Traceback" not in server.stderr()
