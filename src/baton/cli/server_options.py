"""Flags of a command that has an HTTP server, made from the fields of ServerConfig."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from baton.cli.flags import Flag, with_flags
from baton.core.errors import ConfigError
from baton.server.config import ServerConfig
from baton.server.tools.parser import TOOL_PARSERS

FLAGS = {
    "host": Flag("--host", "Address to listen on."),
    "port": Flag("--port", "Port to listen on; 0 takes a free one."),
    "served_model_names": Flag("--served-model-name", "Name of the model in the API; may be given several times."),
    "api_keys": Flag("--api-key", "Ask clients for this key; may be given several times.", "BATON_API_KEY"),
    "max_queue": Flag("--max-queue", "Requests that may wait; one more is answered 429."),
    "max_body_bytes": Flag("--max-body-bytes", "Size limit of a request."),
    "max_logprobs": Flag("--max-logprobs", "Candidates that a client may ask for at each token."),
    "request_timeout_s": Flag("--request-timeout-s", "Seconds from arrival to the last token; by default no limit."),
    "stream_interval": Flag("--stream-interval", "Tokens of a sequence that share an event of a stream."),
    "chat_template": Flag("--chat-template", "Jinja template, or a file with one, in place of the model's own."),
    "trust_request_chat_template": Flag(
        "--trust-request-chat-template",
        "Render templates that come with requests, in a sandbox that does not limit time or memory.",
    ),
    "tool_parser": Flag(
        "--tool-parser",
        f"Format of tool calls: {', '.join(TOOL_PARSERS)}; by default chosen from the chat template.",
    ),
    "enable_log_requests": Flag("--enable-log-requests", "Log when a request starts and ends."),
    "drain_timeout_s": Flag("--drain-timeout-s", "Seconds that running requests may take after SIGTERM or Ctrl-C."),
}


def with_server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `config`, a ServerConfig, by one flag for each of its fields."""
    return with_flags(command, "config", ServerConfig, FLAGS, _config)


def _config(values: dict[str, Any]) -> ServerConfig:
    for name in ("served_model_names", "api_keys"):
        values[name] = tuple(values[name] or ())
    if values["chat_template"] is not None:
        values["chat_template"] = _template(values["chat_template"])
    return ServerConfig(**values)


def _template(given: str) -> str:
    """The text of a template file; what looks like a template is one."""
    if "{" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read --chat-template {given}: {error}") from error
