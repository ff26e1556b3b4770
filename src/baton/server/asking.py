"""What both endpoints do first: refuse what cannot be served now, read the body, and name the answer."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest

from baton.core.handoff import Handoff, Ticket
from baton.core.sampling import Grammar
from baton.obs.log import get_logger
from baton.server.handoff_params import check_taking, parse_handoff, prefill_only, ticket_params, unknown_names
from baton.server.response_format import response_grammar
from baton.server.state import ServerState, state_of
from baton.web.guard import clean_id
from baton.wire.openai.common import GenerationFields
from baton.wire.openai.decode import decode, unknown_fields
from baton.wire.openai.handoff import TicketParams

_log = get_logger(__name__)
TOKENS_HEADER = "x-baton-tokens"
A = TypeVar("A", bound=GenerationFields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking(Generic[A]):
    """A request that may be served.

    Attributes:
        body: its fields; of a giver, those of its prefill alone.
        id: of the answer.
        model: name of the model in the answer.
        arrival_s: seconds since the epoch.
        handoff: what it asks for besides.
    """

    server: ServerState
    http: HttpRequest
    body: A
    id: str
    model: str
    arrival_s: float
    handoff: Handoff | None

    @property
    def created(self) -> int:
        """For the answer."""
        return int(self.arrival_s)

    @property
    def interval(self) -> int:
        """Tokens that share a chunk."""
        return self.body.stream_interval or self.server.config.stream_interval

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        options = self.body.stream_options
        return options is not None and bool(options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether each chunk has the usage so far."""
        options = self.body.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def shows_tokens(self) -> bool:
        """Whether a stream has comments with token ids."""
        return self.http.headers.get(TOKENS_HEADER) == "1"

    def ticket_params(self, ticket: Ticket | None) -> TicketParams | UnsetType:
        """The answer's kv_transfer_params: of a giver, once its prefill is over."""
        peer = self.server.engine.info.peer
        return UNSET if ticket is None or peer is None else ticket_params(ticket, peer)

    def grammar(self) -> Grammar | None:
        """The constraint that the body asks for.

        Raises:
            RequestError: malformed, or more than one.
        """
        body = self.body
        return response_grammar(
            response_format=body.response_format,
            structured_outputs=body.structured_outputs,
            guided_json=body.guided_json,
            guided_regex=body.guided_regex,
            guided_choice=body.guided_choice,
            guided_grammar=body.guided_grammar,
        )


async def read_ask(http: HttpRequest, kind: type[A], prefix: str) -> Asking[A]:
    """Read a request body.

    Args:
        prefix: of the answer's id, such as "cmpl".

    Raises:
        ApiError: 503 or 429 before the body is read; 413, 408 or 503 while it is; 404 or 429 after.
        RequestError: malformed.
    """
    arrival_s = time.time()
    server = state_of(http)
    server.check_ready()
    server.check_queue()
    raw = await server.bodies.read(http)
    body = decode(raw, kind)
    if _log.isEnabledFor(logging.DEBUG):
        unknown = unknown_fields(raw, kind) + unknown_names(body.kv_transfer_params)
        if unknown:
            _log.debug("fields ignored: %s", ", ".join(map(repr, unknown)))
    model = server.check_model(body.model)
    server.check_queue()  # again: it may have filled meanwhile
    handoff = parse_handoff(body.kv_transfer_params, server.engine.info.peer)
    if handoff is not None and handoff.gives:
        body = prefill_only(body)
    elif handoff is not None:
        check_taking(body)
    answer_id = f"{prefix}-{clean_id(body.request_id) or http.state.request_id}"
    return Asking(server=server, http=http, body=body, id=answer_id, model=model, arrival_s=arrival_s, handoff=handoff)
