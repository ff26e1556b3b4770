"""Reads a request body, and no more of it than is allowed."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from baton.server.errors import ApiError, ClientGoneError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413, as soon as it is known to be too long.
        ClientGoneError: the client went away meanwhile.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_long(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise _too_long(max_bytes)
            parts.append(part)
    except ClientDisconnect:
        raise ClientGoneError from None
    return b"".join(parts)


def _too_long(max_bytes: int) -> ApiError:
    return ApiError(413, f"the request body is longer than {max_bytes} bytes", param="body")
