"""Reads request bodies leniently: "3" is 3, null is "not given", unknown fields are ignored."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from baton.core.errors import RequestError

T = TypeVar("T", bound=msgspec.Struct)

_SLOW_BYTES = 1 << 20  # json holds every other request up meanwhile
_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a `kind`.

    Raises:
        RequestError: no JSON, or a field of the wrong type; `param` is the field's dotted path.
    """
    if not body.strip():
        raise RequestError("the body is empty; send a JSON object", param="body")
    try:
        decoded: T = _decoder(kind).decode(body)
        return decoded
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, RecursionError) as error:
        return _decode_slowly(body, kind, str(error))


def unknown_fields(body: bytes, kind: type[msgspec.Struct]) -> list[str]:
    """Names in a valid body that `kind` does not have, for debug logs."""
    return sorted(set(msgspec.json.decode(body)) - {field.encode_name for field in msgspec.structs.fields(kind)})


@lru_cache(maxsize=32)
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=False)


def _decode_slowly(body: bytes, kind: type[T], reason: str) -> T:
    """For JSON as Python writes it: NaN and Infinity, which the field that holds them then refuses by name."""
    if len(body) > _SLOW_BYTES:
        raise _no_json(reason)
    try:
        plain: Any = json.loads(body)
        json.dumps(plain, ensure_ascii=False).encode()
        return msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except UnicodeEncodeError:
        raise RequestError(
            "the body holds half of a surrogate pair; text must be valid Unicode", param="body"
        ) from None
    except (ValueError, RecursionError):
        raise _no_json(reason) from None


def _no_json(reason: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {reason}", param="body")


def _invalid(message: str) -> RequestError:
    missing = _MISSING.search(message)
    at = _AT.search(message)
    path = dotted(at["path"]) if at else ""
    if missing:
        path = f"{path}.{missing['field']}".lstrip(".")
        return RequestError(f"{path} is required", param=path)
    if not path:
        return RequestError(f"the body must be a JSON object: {message}", param="body")
    what = message[: at.start()] if at else message
    return RequestError(f"{path}: {what[:1].lower()}{what[1:].replace('`', '')}", param=path)


def dotted(path: str) -> str:
    """msgspec's `.messages[0].content` as `messages.0.content`; places in objects have no name."""
    return path.replace("[...]", "").replace("[", ".").replace("]", "").strip(".")
