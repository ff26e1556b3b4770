"""Every refusal and failure as an answer in OpenAI's shape. Nothing else ever leaves the server with status >= 400."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import EngineDeadError, RequestError
from baton.wire.openai import errors as kinds
from baton.wire.openai.errors import ErrorBody, ErrorInfo

RETRY_AFTER_S = 1
_KINDS = {
    400: kinds.BAD_REQUEST,
    401: kinds.AUTHENTICATION,
    404: kinds.NOT_FOUND,
    405: kinds.METHOD_NOT_ALLOWED,
    408: kinds.TIMEOUT,
    413: kinds.TOO_LARGE,
    422: kinds.UNPROCESSABLE,
    429: kinds.RATE_LIMIT,
    500: kinds.INTERNAL,
    503: kinds.UNAVAILABLE,
    504: kinds.TIMEOUT,
}


class ApiError(Exception):
    """An answer other than success.

    Args:
        status: a key of the table above.
        param: dotted path of the field that is at fault, if one is.
        retry: tell the client to come back soon (Retry-After).
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers: dict[str, str] = {"Retry-After": str(RETRY_AFTER_S)} if retry else {}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"


class ClientGoneError(Exception):
    """The client closed its connection; there is nobody to answer."""


def as_api_error(error: Exception) -> ApiError:
    """What a client is told about any error; internal ones say nothing of their cause."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return ApiError(400, str(error), param=error.param)
        case EngineDeadError():
            return ApiError(503, str(error), retry=True)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail))
    return ApiError(500, "the server failed on this request; its log says why")


def error_body(error: ApiError) -> bytes:
    """The JSON of an error, for a response or an event."""
    kind = _KINDS.get(error.status, kinds.BAD_REQUEST if error.status < 500 else kinds.INTERNAL)
    info = ErrorInfo(message=error.message, type=kind, param=error.param, code=error.status)
    return msgspec.json.encode(ErrorBody(error=info))


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """The response of an error."""
    return Response(
        error_body(error), error.status, {**error.headers, **(headers or {})}, media_type="application/json"
    )


async def on_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for all errors raised on purpose."""
    api_error = as_api_error(error)
    if isinstance(error, HTTPException):
        path = request.url.path
        if error.status_code == 404:
            api_error = ApiError(404, f"there is no {path}")
        elif error.status_code == 405:
            api_error = ApiError(405, f"{request.method} is not possible on {path}")
        return error_response(api_error, error.headers)
    return error_response(api_error)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """An answer that nobody reads; 499 is what logs of proxies show."""
    return Response(status_code=499)
