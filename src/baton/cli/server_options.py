"""Flags of a command that has an HTTP server, made from the fields of ServerConfig."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from baton.core.errors import ConfigError
from baton.server.config import ServerConfig
from baton.server.tools.parser import TOOL_PARSERS

# Field -> (flag, help). A field without an entry fails the test of this file.
_FLAGS = {
    "host": ("--host", "Address to listen on."),
    "port": ("--port", "Port to listen on; 0 takes a free one."),
    "served_model_names": ("--served-model-name", "Name of the model in the API; may be given several times."),
    "api_keys": ("--api-key", "Ask clients for this key; may be given several times. Or BATON_API_KEY."),
    "max_queue": ("--max-queue", "Requests that may wait; one more is answered 429."),
    "max_body_bytes": ("--max-body-bytes", "Size limit of a request."),
    "max_logprobs": ("--max-logprobs", "Candidates that a client may ask for at each token."),
    "request_timeout_s": ("--request-timeout-s", "Seconds from arrival to the last token; by default no limit."),
    "stream_interval": ("--stream-interval", "Tokens of a sequence that share an event of a stream."),
    "chat_template": ("--chat-template", "Jinja template, or a file with one, in place of the model's own."),
    "trust_request_chat_template": (
        "--trust-request-chat-template",
        "Render templates that come with requests, in a sandbox that does not limit time or memory.",
    ),
    "tool_parser": (
        "--tool-parser",
        f"Format of tool calls: {', '.join(TOOL_PARSERS)}; by default chosen from the chat template.",
    ),
    "enable_log_requests": ("--enable-log-requests", "Log when a request starts and ends."),
    "drain_timeout_s": ("--drain-timeout-s", "Seconds that running requests may take after SIGTERM or Ctrl-C."),
}
_API_KEY_VARIABLE = "BATON_API_KEY"


def with_server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the command's parameter `config`, a ServerConfig, by one flag for each of its fields.

    The command's other parameters keep their order; those flags come behind them.
    """
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    flags = _parameters()
    names = [flag.name for flag in flags]

    @wraps(command)
    def flat(*args: Any, **values: Any) -> None:
        chosen = {name: values.pop(name) for name in names}
        command(*args, config=_config(chosen), **values)

    others = [p for p in parameters if p.name != "config"]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others[1:]]
    flat.__signature__ = inspect.Signature([others[0], *keyword_only, *flags])  # type: ignore[attr-defined]
    flat.__annotations__ = {p.name: p.annotation for p in [*others, *flags]} | {"return": None}
    return flat


def _parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(ServerConfig)
    parameters = []
    for field in fields(ServerConfig):
        flag, text = _FLAGS[field.name]
        several = hints[field.name] == tuple[str, ...]
        option = typer.Option(
            flag, help=text, show_default=not several, envvar=_API_KEY_VARIABLE if field.name == "api_keys" else None
        )
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if several else field.default,
                annotation=Annotated[list[str] | None if several else hints[field.name], option],
            )
        )
    return parameters


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
