"""DELETE /handoffs/{transfer_id}: a router gives up a hand-off whose decode leg will not come."""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from baton.server.handoff_params import MAX_ID_CHARS
from baton.server.state import state_of


async def give_up(http: HttpRequest) -> Response:
    """Free what is kept under this id. 204 whether anything was or not."""
    transfer_id = http.path_params["transfer_id"]
    if len(transfer_id) <= MAX_ID_CHARS:
        state_of(http).engine.withdraw(transfer_id)
    return Response(status_code=204)
