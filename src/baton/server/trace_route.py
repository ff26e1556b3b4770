"""GET /trace/{transfer_id}: this engine's part of a hand-off, for Chrome's trace viewer or Perfetto."""

from __future__ import annotations

import reprlib

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from baton.server.state import state_of
from baton.web.errors import ApiError


async def show_trace(http: HttpRequest) -> Response:
    """Trace events of a recent hand-off; 404 for any other."""
    transfer_id = http.path_params["transfer_id"]
    document = state_of(http).traces.document(transfer_id)
    if document is None:
        raise ApiError(404, f"no recent hand-off has the transfer_id {reprlib.repr(transfer_id)}")
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(document), media_type="application/json", headers=headers)
