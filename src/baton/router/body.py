"""What a request body asks for, and the bodies of the legs that are made of it.

A body is taken apart into its fields only: a long prompt passes through as the bytes it came in.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from baton.router.demand import Demand
from baton.web.errors import ApiError
from baton.wire.openai.common import StreamOptions

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_SLOW_BYTES = 1 << 20
_PREFIX_BYTES = 1 << 16
_CHARS_A_TOKEN = 4
_UNSAID_TOKENS = 1024
"""What a chat without a limit is taken to need; a completion without one has 16 (OpenAI's default)."""
_SEED_BITS = 63
_PRIVATE = "kv_transfer_params"
_NOT_FOR_PREFILL = ("stream", "stream_options", "stream_interval", "n", "best_of")
_BY_PREFILL = ("echo", "prompt_logprobs")
"""Answered by the prefill worker alone, see `router/merge.py`."""
_GRAMMARS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "tools",
    "functions",
)
_ONE = Raw(b"1")
_NULL = Raw(b"null")
Fields = Mapping[str, Raw]


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that the router looks at, read as leniently as the servers read them."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    stop: str | list[str] | None = None
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    seed: int | None = None
    use_beam_search: bool | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request body.

    Attributes:
        path: of the endpoint.
        raw: as it came, without fields that are not a client's to set.
        fields: None: no JSON object, which any worker refuses in its own words.
        wishes: all defaults where a field is of a wrong type; that is for a worker to refuse, too.
        odd: it is one of these two.
    """

    path: str
    raw: bytes
    fields: Fields | None
    wishes: Wishes
    odd: bool
    demand: Demand

    @property
    def chat(self) -> bool:
        """Whether it is a chat."""
        return self.path == CHAT

    @property
    def max_tokens(self) -> int | None:
        """The most tokens of a choice, where it is said."""
        wishes = self.wishes
        if self.chat and wishes.max_completion_tokens is not None:
            return wishes.max_completion_tokens
        return wishes.max_tokens if self.chat or wishes.max_tokens is not None else 16

    @property
    def constrained(self) -> bool:
        """Whether tools or a grammar shape the answer: what was sent of it cannot be gone on with elsewhere."""
        return any(self.has(name) for name in _GRAMMARS)

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.fields is not None and bytes(self.fields.get(name, _NULL)) != b"null"


_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_wishes = msgspec.json.Decoder(Wishes, strict=False).decode
_encode = msgspec.json.Encoder().encode


def read_body(raw: bytes, path: str, *, session: str | None = None) -> Asked:
    """Look at a body.

    Args:
        session: from the header that names it.

    Raises:
        ApiError: 400, long and no JSON.
    """
    wishes, odd = Wishes(), False
    fields = _fields_of(raw)
    if fields is not None:
        if _PRIVATE in fields:
            del fields[_PRIVATE]
        raw = _encode(fields)
        try:
            wishes = _read_wishes(raw)
        except msgspec.DecodeError:  # also what only Python's reader takes
            odd = True
    odd = odd or fields is None
    demand = _demand(fields or {}, wishes, path, session, whole=odd)
    return Asked(path=path, raw=raw, fields=fields, wishes=wishes, odd=odd, demand=demand)


def _fields_of(raw: bytes) -> dict[str, Raw] | None:
    try:
        return _read_fields(raw)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _fields_slowly(raw)


def _fields_slowly(raw: bytes) -> dict[str, Raw] | None:
    """What Python's reader takes and others do not (NaN, UTF-16): workers may, so no field may hide in it."""
    if len(raw) > _SLOW_BYTES:
        raise ApiError(400, "the body is not valid JSON", param="body")
    try:
        value: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return {name: Raw(json.dumps(field).encode()) for name, field in value.items()}


def _demand(fields: Fields, wishes: Wishes, path: str, session: str | None, *, whole: bool) -> Demand:
    prompt = bytes(fields.get("messages" if path == CHAT else "prompt", b"")).strip()
    limit = wishes.max_tokens if wishes.max_completion_tokens is None else wishes.max_completion_tokens
    if limit is None:
        limit = _UNSAID_TOKENS if path == CHAT else 16
    return Demand(
        model=wishes.model or None,
        num_prompt_tokens=_num_tokens(prompt, path),
        num_new_tokens=max(0, limit) * max(1, wishes.n or 1, wishes.best_of or 1),
        prefix=prompt[1 : 1 + _PREFIX_BYTES],
        session=session,
        priority=wishes.priority or 0,
        splittable=not whole and _splittable(fields, wishes, prompt, path),
    )


def _num_tokens(prompt: bytes, path: str) -> int:
    if path != CHAT and _are_ids(prompt):
        return prompt.count(b",") + 1
    return max(1, len(prompt) // _CHARS_A_TOKEN)


def _are_ids(prompt: bytes) -> bool:
    return prompt[:1] == b"[" and prompt[1:].lstrip()[:1].isdigit()


def _splittable(fields: Fields, wishes: Wishes, prompt: bytes, path: str) -> bool:
    """Whether prefill and decode may be on two engines.

    Not: several prompts; a prompt that is only scored; more candidates than choices (their logprobs decide, and the
    first token's are the prefill worker's); an echo that is streamed, or whose text only the engine that decodes knows.
    """
    if wishes.use_beam_search or "resume_token_ids" in fields:
        return False
    if (wishes.best_of or 1) > (wishes.n or 1):
        return False
    if path == CHAT:
        return True
    if wishes.echo and (wishes.max_tokens == 0 or wishes.stream or not _echo_known(fields, wishes, prompt)):
        return False
    return prompt[:1] == b'"' or _are_ids(prompt)


def _echo_known(fields: Fields, wishes: Wishes, prompt: bytes) -> bool:
    """Where the prompt ends in the prefill worker's text: logprobs say it, and so does a prompt given as text."""
    if bytes(fields.get("logprobs", _NULL)) != b"null":
        return True
    return prompt[:1] == b'"' and wishes.truncate_prompt_tokens is None


def new_seed() -> Raw:
    """For a request that came without one: every leg and every attempt draws the same tokens."""
    return Raw(str(secrets.randbits(_SEED_BITS)).encode())


def prefill_body(asked: Asked, params: Mapping[str, Any], seed: Raw | None) -> bytes:
    """The body of the prefill leg: one token, of one choice, whole.

    Args:
        params: its kv_transfer_params.
        seed: for a request without one; None: leave it so.
    """
    assert asked.fields is not None
    fields = dict(asked.fields)
    for name in _NOT_FOR_PREFILL:
        fields.pop(name, None)
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    if "min_tokens" in fields:  # what may not be the first token depends on whether it is 0
        fields["min_tokens"] = Raw(str(max(0, min(1, asked.wishes.min_tokens or 0))).encode())
    fields[_PRIVATE] = Raw(_encode(params))
    return _encode(_seeded(fields, seed))


def decode_body(asked: Asked, params: Mapping[str, Any] | Raw | None, seed: Raw | None) -> bytes:
    """The body of the decode leg. params: its kv_transfer_params, as they are when they are Raw; None for none."""
    assert asked.fields is not None
    fields = dict(asked.fields)
    for name in _BY_PREFILL:
        fields.pop(name, None)
    if params is not None:
        fields[_PRIVATE] = params if isinstance(params, Raw) else Raw(_encode(params))
    return _encode(_seeded(fields, seed))


def whole_body(asked: Asked, seed: Raw | None, resumed: bytes = b"") -> bytes:
    """The body for one worker alone.

    Args:
        resumed: token ids, with commas between them, that the answer has already.
    """
    if asked.fields is None or (not resumed and seed is None):
        return asked.raw
    fields = dict(asked.fields)
    if resumed:
        fields["resume_token_ids"] = Raw(b"[" + resumed + b"]")
    return _encode(_seeded(fields, seed))


def _seeded(fields: dict[str, Raw], seed: Raw | None) -> dict[str, Raw]:
    if seed is not None and bytes(fields.get("seed", _NULL)) == b"null":
        fields["seed"] = seed
    return fields
