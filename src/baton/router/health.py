"""Looks at workers: asks each again and again how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from baton.obs.log import get_logger
from baton.router.http import Http, HttpError
from baton.router.looks import Look, other_server, read_models, read_stats
from baton.router.worker import WorkerKind, WorkerSpec

_log = get_logger(__name__)


async def look_at(http: Http, spec: WorkerSpec, *, timeout_s: float, kind: WorkerKind | None = None) -> Look:
    """Ask a worker how it is.

    Args:
        kind: what it was the last time; a server of others is not asked for /stats again.

    Raises:
        HttpError: it does not answer, or says that it is not well.
    """
    headers = {"connection": "close"}  # one of its own: a kept one may be broken, and says nothing of a listener
    if spec.api_key is not None:
        headers["authorization"] = f"Bearer {spec.api_key}"
    async with asyncio.timeout(timeout_s):
        if kind is not WorkerKind.OPENAI:
            look = await _stats(http, spec, timeout_s, headers)
            if look is not None:
                return look
            if kind is WorkerKind.BATON:  # a bad moment of it is no reason to take it for another server
                raise HttpError(f"{spec.url}/stats did not answer as a Baton server does")
        reply = await http.fetch("GET", f"{spec.url}/health", timeout_s=timeout_s, headers=headers)
        if reply.status != 200:
            raise HttpError(f"{spec.url}/health answered {reply.status}", status=reply.status)
        return other_server(spec, await _models(http, spec, timeout_s, headers))


async def _models(http: Http, spec: WorkerSpec, timeout_s: float, headers: dict[str, str]) -> tuple[str, ...]:
    """None where it does not tell, perhaps only those with a key."""
    try:
        return read_models(await http.get_json(f"{spec.url}/v1/models", timeout_s=timeout_s, headers=headers))
    except HttpError as error:
        if error.status == 0:
            raise
        return ()


async def _stats(http: Http, spec: WorkerSpec, timeout_s: float, headers: dict[str, str]) -> Look | None:
    """None when this is no server of Baton's."""
    try:
        body = await http.get_json(f"{spec.url}/stats", timeout_s=timeout_s, headers=headers)
    except HttpError as error:
        if error.status == 0 or error.status >= 500:
            raise
        return None
    return read_stats(body, asyncio.get_running_loop().time())


class Watch:
    """Looks at one worker until it is closed.

    Args:
        on_look: gets what each look brought: a Look, or an HttpError.
        patience_s: asked before each look: how long its answer may take.
        kind: asked before each look: what the worker was the last time, or None.
    """

    def __init__(
        self,
        http: Http,
        spec: WorkerSpec,
        *,
        interval_s: float,
        patience_s: Callable[[], float],
        kind: Callable[[], WorkerKind | None],
        on_look: Callable[[Look | HttpError], None],
    ) -> None:
        self._http = http
        self._spec = spec
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._kind = kind
        self._on_look = on_look
        self._now = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def look_now(self) -> None:
        """Do not wait for the next turn."""
        self._now.set()

    async def close(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            self._now.clear()
            try:
                self._on_look(await self._look())
            except Exception:  # a worker that nobody looks at any more would stay as it is for ever
                _log.exception("looking at %s failed", self._spec.url)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._now.wait()

    async def _look(self) -> Look | HttpError:
        patience_s = self._patience_s()
        try:
            return await look_at(self._http, self._spec, timeout_s=patience_s, kind=self._kind())
        except TimeoutError:
            return HttpError(f"no answer within {patience_s:.1f} s")
        except HttpError as error:
            return error
