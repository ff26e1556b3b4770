"""What a request asks of the fleet: all that placing it depends on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One request, as policies see it.

    Attributes:
        model: the name the client sent; None: any.
        num_prompt_tokens: exact for token ids, else an estimate from the text's length.
        num_new_tokens: the most it may generate.
        prefix: the start of its prompt, as bytes; requests that share a prefix share these.
        session: requests of one session like to go where the others went; None: no wish.
        priority: lower goes first.
        splittable: prefill and decode may be on different engines (one prompt, more than one token, ...).
    """

    model: str | None = None
    num_prompt_tokens: int
    num_new_tokens: int
    prefix: bytes = b""
    session: str | None = None
    priority: int = 0
    splittable: bool = True
