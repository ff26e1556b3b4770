"""The real application over real HTTP in front of a real engine process without a model, for tests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from baton.cluster.launch import EngineLaunch
from baton.cluster.local import LocalEngine
from baton.engine.stub_process import StubOptions
from baton.server.app import create_app
from baton.server.config import ServerConfig
from baton.server.engine_client import EngineClient
from baton.server.metrics import ServerMetrics
from baton.text.tokenizer import load_tokenizer

END, START = 256, 257
VOCAB = 258
TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<start>{{ m['role'] }}: {{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<start>assistant: {% endif %}"
)


def byte_tokenizer(folder: Path) -> Path:
    """A folder with a tokenizer of one token a byte (id = place in the sorted byte-level alphabet) and a template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<start>", special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<end>", "bos_token": "<start>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


class Server:
    """A running server; `engine` belongs to its event loop, use `call`."""

    def __init__(self, url: str, engine: Any, loop: asyncio.AbstractEventLoop, metrics: ServerMetrics) -> None:
        self.url = url
        self.engine = engine
        self.metrics = metrics
        self._loop = loop

    @property
    def client(self) -> EngineClient:
        return self.engine.client

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        with self.http() as http:
            return http.post(path, json=body)

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def chat(self, **body: Any) -> dict[str, Any]:
        body.setdefault("messages", [{"role": "user", "content": "Say hi"}])
        response = self.post("/v1/chat/completions", **body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, [DONE] checked and left out."""
        with self.http() as http, http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-cache" and response.headers["x-accel-buffering"] == "no"
            return events_of(b"".join(response.iter_raw()))

    def call(self, function: Any, *arguments: Any) -> Any:
        """Run a function on the server's event loop."""

        async def run() -> Any:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)


def events_of(raw: bytes) -> list[dict[str, Any]]:
    """Parsed events of a whole SSE body that ends with [DONE]."""
    blocks = raw.split(b"\n\n")
    assert blocks[-1] == b"" and blocks[-2] == b"data: [DONE]", raw[-200:]
    assert all(block.startswith(b"data: ") for block in blocks[:-1])
    return [json.loads(block[6:]) for block in blocks[:-2]]


@contextmanager
def run_server(tokenizer: Path | None, config: ServerConfig | None = None, **stub: Any) -> Iterator[Server]:
    """A server over a stub engine (fields of StubOptions), on a free port, in a thread."""
    options = StubOptions(**{"vocab_size": VOCAB, "max_model_len": 2048, "tokenizer": str(tokenizer or ""), **stub})
    launch = EngineLaunch(module="baton.engine.stub_process", options=msgspec.json.encode(options).decode())
    with serve(lambda: LocalEngine(launch), config or ServerConfig(served_model_names=("MODEL", "alias"))) as server:
        yield server


@contextmanager
def serve(make_engine: Callable[[], Any], config: ServerConfig) -> Iterator[Server]:
    """A server over any engine with the verbs of a LocalEngine, made on the server's event loop."""
    started: list[Server] = []
    ready, stop, failure = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            asyncio.run(_serve(make_engine, config, started, ready, stop))
        except BaseException as error:
            failure.append(error)
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    if failure:
        raise failure[0]
    try:
        yield started[0]
    finally:
        stop.set()
        thread.join(20)


async def _serve(
    make_engine: Callable[[], Any],
    config: ServerConfig,
    started: list[Server],
    ready: threading.Event,
    stop: threading.Event,
) -> None:
    engine = make_engine()
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY by it
    listener.bind(("127.0.0.1", 0))
    try:
        await engine.start()
        info = engine.client.info
        tokenizer = load_tokenizer(Path(info.tokenizer)) if info.tokenizer else None
        metrics = ServerMetrics(info, "MODEL")
        engine.client.on_output(metrics.on_output)
        app = create_app(config, engine.client, tokenizer, metrics)
        uv = uvicorn.Server(uvicorn.Config(app, http="httptools", log_level="warning", lifespan="off"))
        uv.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.create_task(uv._serve([listener]))
        while not uv.started:
            await asyncio.sleep(0.01)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        started.append(Server(url, engine, asyncio.get_running_loop(), metrics))
        ready.set()
        while not stop.is_set():
            await asyncio.sleep(0.02)
        uv.should_exit = uv.force_exit = True
        await serving
    finally:
        await engine.stop()
        listener.close()
