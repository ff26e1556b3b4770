"""Structured output: OpenAI's `response_format` and vLLM's fields as one grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from baton.core.errors import RequestError
from baton.core.sampling import Grammar, GrammarKind

MAX_SOURCE_CHARS = 256 << 10
MAX_CHOICES = 1024
"""Compiling takes time and memory that grow with both, in the process that runs the model."""
_IGNORED = ("disable_fallback", "disable_additional_properties")  # choices of vLLM's backends


def response_grammar(
    *,
    response_format: object = None,
    structured_outputs: object = None,
    guided_json: object = None,
    guided_regex: object = None,
    guided_choice: object = None,
    guided_grammar: object = None,
) -> Grammar | None:
    """The constraint that a request asks for; None: free text. Arguments are fields of the body, decoded from JSON.

    Raises:
        RequestError: malformed, or more than one constraint; param names the field.
    """
    found = [
        ("response_format", _response_format(response_format)),
        ("structured_outputs", _structured_outputs(structured_outputs)),
        ("guided_json", _optional(guided_json, "guided_json", _json)),
        ("guided_regex", _optional(guided_regex, "guided_regex", _regex)),
        ("guided_choice", _optional(guided_choice, "guided_choice", _choice)),
        ("guided_grammar", _optional(guided_grammar, "guided_grammar", _ebnf)),
    ]
    return _only([(param, param, grammar) for param, grammar in found])


def _only(found: Sequence[tuple[str, str, Grammar | None]]) -> Grammar | None:
    """The single grammar among (param, name, grammar)."""
    given = [(param, name, grammar) for param, name, grammar in found if grammar is not None]
    if len(given) > 1:
        param, name, _ = given[1]
        raise RequestError(f"{name} cannot be combined with {given[0][1]}: give one constraint", param=param)
    return given[0][2] if given else None


def _optional(value: object, param: str, make: Callable[[object, str, str], Grammar]) -> Grammar | None:
    return None if value is None else make(value, param, param)


def _response_format(value: object) -> Grammar | None:
    param = "response_format"
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and kind == "json_schema":
        return _json_schema(value.get("json_schema"))
    if kind == "json_object":
        return Grammar(kind=GrammarKind.JSON_OBJECT)
    if kind != "text":
        raise RequestError(f'{param} must be an object of type "text", "json_object" or "json_schema"', param=param)
    return None


def _json_schema(value: object) -> Grammar:
    param = "response_format"
    where = f"{param}.json_schema"
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} must be an object with name and schema", param=param)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.name must be a non-empty string", param=param)
    if not isinstance(value.get("strict"), (bool, type(None))):
        raise RequestError(f"{where}.strict must be true or false", param=param)
    schema = value.get("schema")
    if schema is None:
        return Grammar(kind=GrammarKind.JSON_OBJECT)
    if not isinstance(schema, Mapping):
        raise RequestError(f"{where}.schema must be an object", param=param)
    return _json(schema, param, f"{where}.schema")


def _structured_outputs(value: object) -> Grammar | None:
    param = "structured_outputs"
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} must be an object", param=param)
    found = []
    for key, entry in value.items():
        name = f"{param}.{key}"
        if entry is None or key in _IGNORED or (entry is False and key != "json"):
            continue
        if key not in _MAKE:
            raise RequestError(f"{name} is not supported; use one of {', '.join(_MAKE)}", param=param)
        found.append((param, name, _MAKE[key](entry, param, name)))
    return _only(found)


def _json(value: object, param: str, name: str) -> Grammar:
    """A schema, as an object or as JSON text."""
    if isinstance(value, str):
        _check_length(value, param, name)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} is not valid JSON: {error}", param=param) from error
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} must be a JSON schema (an object, or its JSON text)", param=param)
    try:
        source = json.dumps(value)
    except RecursionError as error:
        raise RequestError(f"{name} is nested too deeply", param=param) from error
    return bounded_grammar(GrammarKind.JSON_SCHEMA, source, param, name)


def _json_object(value: object, param: str, name: str) -> Grammar:
    if value is not True:
        raise RequestError(f"{name} must be true or false", param=param)
    return Grammar(kind=GrammarKind.JSON_OBJECT)


def _regex(value: object, param: str, name: str) -> Grammar:
    return bounded_grammar(GrammarKind.REGEX, _text(value, param, name), param, name)


def _ebnf(value: object, param: str, name: str) -> Grammar:
    return bounded_grammar(GrammarKind.EBNF, _text(value, param, name), param, name)


def _choice(value: object, param: str, name: str) -> Grammar:
    entries = list(value) if isinstance(value, Sequence) and not isinstance(value, (str, bytes)) else []
    if not entries or not all(isinstance(entry, str) and entry for entry in entries):
        raise RequestError(f"{name} must be a list of non-empty strings", param=param)
    if len(entries) > MAX_CHOICES:
        raise RequestError(f"{name} must have at most {MAX_CHOICES} entries, got {len(entries)}", param=param)
    return bounded_grammar(GrammarKind.CHOICE, json.dumps(entries, ensure_ascii=False), param, name)


def bounded_grammar(kind: GrammarKind, source: str, param: str, name: str) -> Grammar:
    """A grammar whose source is short enough to be compiled.

    Raises:
        RequestError: it is too long; `name` is what the message calls it.
    """
    _check_length(source, param, name)
    return Grammar(kind=kind, source=source)


def _check_length(source: str, param: str, name: str) -> None:
    if len(source) > MAX_SOURCE_CHARS:
        raise RequestError(
            f"{name} must have at most {MAX_SOURCE_CHARS} characters (as JSON where it is JSON), got {len(source)}",
            param=param,
        )


def _text(value: object, param: str, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be a non-empty string", param=param)
    return value


_MAKE: dict[str, Callable[[object, str, str], Grammar]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "json_object": _json_object,
}
