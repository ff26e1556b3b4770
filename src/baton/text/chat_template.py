"""Renders chat templates: Jinja in a sandbox, with the names that templates of Hugging Face models rely on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.core.errors import RequestError

Message = Mapping[str, Any]


def render(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Text of a conversation.

    Args:
        template: Jinja source.
        messages: each with a role, and content as text or as a list of text parts (joined by newlines).
        tools: JSON schemas of functions, passed through.
        variables: further names (special tokens, enable_thinking, ...).

    Raises:
        RequestError: a message is malformed, the template is not valid, or it refuses the conversation.
    """
    names = {
        "messages": [_plain_message(i, message) for i, message in enumerate(_list(messages, "messages"))],
        "tools": _list(tools, "tools") if tools else None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    clash = set(names) & set(variables or {}) - {"documents"}
    if clash:
        raise RequestError(
            f"chat template arguments must not contain {', '.join(sorted(clash))}", param="chat_template_kwargs"
        )
    try:
        return _compiled(template).render({**names, **(variables or {})})
    except jinja2.TemplateSyntaxError as error:
        raise RequestError(f"the chat template is not valid Jinja: {_line(error)}", param="chat_template") from error
    except jinja2.TemplateError as error:
        raise RequestError(f"the chat template refuses these messages: {_line(error)}", param="messages") from error
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        # What a template meets in values it did not expect (a missing key, None + text, ...).
        raise RequestError(f"the chat template fails on these messages: {_line(error)}", param="messages") from error


def _list(value: object, param: str) -> list[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise RequestError(f"{param} must be a list of objects", param=param)
    return list(value)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _plain_message(index: int, message: Message) -> dict[str, Any]:
    """A message as templates expect it: text content, no None values, tool arguments as objects."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages[{index}] must be an object with a role", param="messages")
    plain = {key: value for key, value in message.items() if value is not None}
    plain["content"] = _text(index, plain.get("content", ""))
    if "tool_calls" in plain:
        plain["tool_calls"] = [_plain_call(index, call) for call in _list(plain["tool_calls"], "messages")]
    return plain


def _text(index: int, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"messages[{index}].content must be text or a list of text parts", param="messages")
    return "\n".join(_part(index, part) for part in content)


def _part(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if isinstance(part, Mapping) and kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(f"messages[{index}] has a part of type {kind}; only text parts are supported", param="messages")


def _plain_call(index: int, call: object) -> dict[str, Any]:
    """A tool call with its arguments as an object: OpenAI sends JSON text, templates apply tojson to an object."""
    if not isinstance(call, Mapping):
        raise RequestError(f"messages[{index}].tool_calls must be a list of objects", param="messages")
    plain = dict(call)
    function = plain.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        try:
            arguments = json.loads(function["arguments"]) if function["arguments"] else {}
        except json.JSONDecodeError as error:
            raise RequestError(
                f"messages[{index}].tool_calls has arguments that are no JSON: {error}", param="messages"
            ) from error
        plain["function"] = {**function, "arguments": arguments}
    return plain


class _Generation(jinja2.ext.Extension):
    """{% generation %} .. {% endgeneration %}: marks the assistant's text for training; renders its body as it is."""

    tags = {"generation"}  # noqa: RUF012 - the attribute Jinja looks at

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(value: object, ensure_ascii: bool = False, **options: Any) -> str:
    """Like json.dumps: Jinja's own filter escapes HTML, which models have never seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _environment() -> ImmutableSandboxedEnvironment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation]
    )
    globals_: dict[str, Callable[..., object]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    env.globals.update(globals_)
    env.filters["tojson"] = _tojson
    return env


@lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)
