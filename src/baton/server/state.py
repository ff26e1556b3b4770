"""What all endpoints share: the engine, the tokenizer, the configuration, and whether the server takes requests."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING

from starlette.requests import Request

from baton.core.errors import RequestError
from baton.server.config import ServerConfig
from baton.server.engine_client import EngineClient, EngineState
from baton.server.handoff_traces import HandoffTraces
from baton.server.token_texts import TokenTexts
from baton.server.tools.parser import detect_tool_format
from baton.text.tokenizer import Tokenizer
from baton.web.errors import ApiError
from baton.web.limits import BodyReader

if TYPE_CHECKING:
    from baton.server.metrics import ServerMetrics


class ServerState:
    """One server. Used on one event loop.

    Attributes:
        tool_format: name of the tool parser; None: the model is not known to call tools.
        tokenizer_or_none: None for a model without one; then prompts are token ids and answers have no text.
        bodies: reads those of requests.
        traces: of recent hand-offs.
        num_open: generations that have not been answered to the end.
        started_s: seconds since the epoch.
    """

    def __init__(
        self, config: ServerConfig, engine: EngineClient, tokenizer: Tokenizer | None, metrics: ServerMetrics | None
    ) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer_or_none = tokenizer
        self.token_texts = TokenTexts(tokenizer)
        self.metrics = metrics
        self.bodies = BodyReader(config.max_body_bytes)
        self.traces = HandoffTraces()
        self.num_open = 0
        self.started_s = int(time.time())
        self.tool_format = config.tool_parser or detect_tool_format(self._tool_template, engine.info.architecture)
        self.seeds = random.Random()
        self._numbers = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        if self.tokenizer_or_none is None:
            raise RequestError("the model has no tokenizer; give token ids as the prompt", param="prompt")
        return self.tokenizer_or_none

    @property
    def _tool_template(self) -> str | None:
        """The template that conversations with tools are rendered by."""
        own = {} if self.tokenizer_or_none is None else self.tokenizer_or_none.chat_templates
        return self.config.chat_template or own.get("tool_use") or own.get("default")

    @property
    def has_chat(self) -> bool:
        """Whether conversations can be rendered."""
        return self.tokenizer_or_none is not None and self._tool_template is not None

    def engine_id(self, response_id: str) -> str:
        """An id for one prompt of a request, never used before: clients may send the same request id twice."""
        return f"{response_id}-{next(self._numbers)}"

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names the model is served under, the one for answers first."""
        return self.config.served_model_names or (self.engine.info.model,)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. No name, or an empty one, means the model that is there.

        Raises:
            ApiError: 404, another model is asked for.
        """
        names = self.model_names
        if not name:
            return names[0]
        if name not in names:
            raise ApiError(404, f"the model {name!r} does not exist; served: {', '.join(names)}", param="model")
        return name

    def check_ready(self) -> None:
        """Refuse work that cannot be done now.

        Raises:
            ApiError: 503 while draining or without an engine.
        """
        state = self.engine.state
        if state is EngineState.DRAINING:
            raise ApiError(503, "the server is shutting down and takes no new requests", retry=True)
        if state is not EngineState.READY:
            raise ApiError(503, f"the engine is {state.value}", retry=True)

    def check_queue(self) -> None:
        """Refuse a request when too many wait already.

        Raises:
            ApiError: 429.
        """
        if self.num_waiting >= self.config.max_queue:
            if self.metrics is not None:
                self.metrics.rejected()
            raise ApiError(429, f"{self.num_waiting} requests are waiting already; try again soon", retry=True)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot. The engine's own count is as old as its last step; live requests beyond
        its slots must be waiting whatever it said."""
        engine = self.engine
        return max(engine.stats.num_waiting, engine.num_live - engine.info.max_num_seqs)


def state_of(request: Request) -> ServerState:
    """The state of the server that got this request."""
    state: ServerState = request.app.state.server
    return state
