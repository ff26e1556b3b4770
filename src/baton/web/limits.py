"""Reads request bodies: no more bytes than are allowed, of one and of all together, and not for longer."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from baton.web.errors import ApiError, ClientGoneError

READ_S = 60.0
"""For a whole body: one that trickles in holds memory and a connection for as long as its client likes."""
ALL_BYTES = 256 << 20
"""Of all bodies that are being read, or of one if that may be longer."""


class BodyReader:
    """Reads the bodies of one server. Used on one event loop.

    Args:
        max_bytes: of one body.
        max_all_bytes: of all that are being read, as far as they have come; what clients merely announce is free.
        read_s: for one body.

    Attributes:
        num_bytes: of the bodies that are being read.
    """

    def __init__(self, max_bytes: int, *, max_all_bytes: int = ALL_BYTES, read_s: float = READ_S) -> None:
        self._max_bytes = max_bytes
        self._max_all_bytes = max(max_bytes, max_all_bytes)
        self._read_s = read_s
        self.num_bytes = 0

    async def read(self, request: Request) -> bytes:
        """The whole body.

        Raises:
            ApiError: 413, as soon as it is known to be too long; 503, too much is being read; 408, it takes too long.
            ClientGoneError: the client went away meanwhile.
        """
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_long()
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._read_s):
                await self._collect(request, parts)
        except ClientDisconnect:
            raise ClientGoneError from None
        except TimeoutError:
            error = ApiError(408, f"the request body took longer than {self._read_s:g} s to arrive", param="body")
            error.headers["Connection"] = "close"  # the rest of the body would come before the next request
            raise error from None
        finally:
            self.num_bytes -= sum(map(len, parts))
        return b"".join(parts)

    async def _collect(self, request: Request, parts: list[bytes]) -> None:
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_bytes:
                raise self._too_long()
            if self.num_bytes + len(part) > self._max_all_bytes:
                raise ApiError(503, "the server is reading too many large requests; try again soon", retry=True)
            self.num_bytes += len(part)
            parts.append(part)

    def _too_long(self) -> ApiError:
        return ApiError(413, f"the request body is longer than {self._max_bytes} bytes", param="body")
