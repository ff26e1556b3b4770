"""Which JSON schemas the grammar library enforces in full; the rest is refused rather than half obeyed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from baton.core.errors import RequestError

_UNENFORCED = (
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
)
_SUBSCHEMA = (
    "items",
    "additionalProperties",
    "additionalItems",
    "unevaluatedItems",
    "unevaluatedProperties",
    "propertyNames",
)
_SUBSCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SUBSCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def check_schema(source: str) -> None:
    """Refuse a schema that cannot be enforced.

    `oneOf` is taken as `anyOf`: alternatives that overlap are not told apart. `format` names that are not known
    are annotations, as JSON Schema says.

    Raises:
        RequestError: not JSON, or a keyword is not supported; param is "grammar".
    """
    try:
        nodes = list(_schemas(json.loads(source)))
    except ValueError as error:
        raise RequestError(f"JSON schema is not valid JSON: {error}", param="grammar") from error
    except RecursionError as error:
        raise RequestError("JSON schema is nested too deeply", param="grammar") from error
    for node in nodes:
        for keyword in _UNENFORCED:
            if node.get(keyword, False) is not False:
                raise RequestError(f"JSON schema keyword {keyword!r} is not supported", param="grammar")
        parts = node.get("allOf")
        if isinstance(parts, list) and len(parts) > 1:
            raise RequestError("JSON schema keyword 'allOf' is supported with one entry only", param="grammar")
        if "pattern" in node and ("minLength" in node or "maxLength" in node):
            raise RequestError(
                "JSON schema keyword 'pattern' cannot be combined with 'minLength' or 'maxLength'", param="grammar"
            )
        reference = node.get("$ref", "#")
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise RequestError(f"JSON schema '$ref' must start with '#', got {reference!r}", param="grammar")


def _schemas(node: object) -> Iterator[Mapping[str, object]]:
    """The schema and all schemas inside it; names of properties and constants are not schemas."""
    if not isinstance(node, dict):
        return
    yield node
    for keyword in _SUBSCHEMA:
        yield from _schemas(node.get(keyword))
    for keyword in _SUBSCHEMA_LISTS:
        entries = node.get(keyword)
        for entry in entries if isinstance(entries, list) else ():
            yield from _schemas(entry)
    for keyword in _SUBSCHEMA_MAPS:
        entries = node.get(keyword)
        for entry in entries.values() if isinstance(entries, dict) else ():
            yield from _schemas(entry)
