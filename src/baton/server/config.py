"""What a user may say about the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.errors import ConfigError
from baton.server.tools.parser import TOOL_PARSERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of one server.

    Attributes:
        host, port: where it listens; port 0 takes a free one.
        served_model_names: names a client may send as `model`; the first is the one in answers. Empty: the engine's.
        api_keys: any of these is accepted as a bearer token; empty: no key is asked for.
        max_queue: requests that may wait in the engine; one more is answered 429.
        max_body_bytes: of a request; more is answered 413.
        max_logprobs: candidates a client may ask for at each token.
        request_timeout_s: from arrival to the last token; None: no limit.
        stream_interval: tokens of a sequence that share an event of a stream; its first and last token never wait.
        chat_template: Jinja source in place of the model's own.
        trust_request_chat_template: render templates that come with requests. They run in a sandbox, which keeps
            them from data and code but not from burning time and memory.
        tool_parser: name of the tool call format; None: chosen from the chat template.
        enable_log_requests: a line when a request starts and one when it ends.
        drain_timeout_s: how long running requests may take after the server was told to stop.
    """

    host: str = "0.0.0.0"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    max_queue: int = 1024
    max_body_bytes: int = 32 << 20
    max_logprobs: int = 20
    request_timeout_s: float | None = None
    stream_interval: int = 1
    chat_template: str | None = None
    trust_request_chat_template: bool = False
    tool_parser: str | None = None
    enable_log_requests: bool = False
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("max_queue", "max_body_bytes", "stream_interval"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.max_logprobs <= 20:
            raise ConfigError(f"max_logprobs must be between 0 and 20, got {self.max_logprobs}")
        if self.request_timeout_s is not None and self.request_timeout_s <= 0:
            raise ConfigError(f"request_timeout_s must be positive, got {self.request_timeout_s}")
        if self.drain_timeout_s < 0:
            raise ConfigError(f"drain_timeout_s must not be negative, got {self.drain_timeout_s}")
        if self.tool_parser is not None and self.tool_parser not in TOOL_PARSERS:
            raise ConfigError(f"tool_parser must be one of {', '.join(TOOL_PARSERS)}, got {self.tool_parser!r}")
        if not all(self.api_keys):
            raise ConfigError("api_keys must not contain an empty key")
