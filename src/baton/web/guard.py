"""The outermost layer: request ids, API keys, and an answer in OpenAI's shape when an endpoint breaks."""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.obs.log import get_logger
from baton.web.errors import ApiError, ClientGoneError, as_api_error, error_response

_log = get_logger(__name__)
OPEN_PATHS = frozenset(("/", "/health", "/live", "/ready", "/ping", "/version", "/load", "/metrics", "/stats"))
_MAX_ID = 128


class Guard:
    """ASGI middleware.

    Args:
        app: what is guarded.
        api_keys: any of them opens the paths that are not in OPEN_PATHS; none: everything is open.
    """

    def __init__(self, app: ASGIApp, api_keys: Iterable[str] = ()) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = clean_id(headers.get("x-request-id")) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            if self._keys and scope["path"] not in OPEN_PATHS and not self._allowed(headers.get("authorization")):
                raise ApiError(401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'")
            await self._app(scope, receive, send_with_id)
        except ClientGoneError:
            return
        except Exception as error:
            api_error = as_api_error(error)
            if api_error.status == 500:
                _log.exception("request %s failed on %r", request_id, scope["path"])
            if not started:
                await error_response(api_error)(scope, receive, send_with_id)

    def _allowed(self, header: str | None) -> bool:
        scheme, _, given = (header or "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        token = given.strip().encode("latin-1")  # the bytes that were sent
        # Every key is compared, each in constant time.
        return sum(hmac.compare_digest(token, key) for key in self._keys) > 0


def clean_id(given: str | None) -> str | None:
    """A client's request id if it may stand in headers and logs, else None."""
    if given and len(given) <= _MAX_ID and given.isascii() and given.isprintable() and " " not in given:
        return given
    return None
