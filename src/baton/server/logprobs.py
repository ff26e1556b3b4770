"""Logprobs in OpenAI's two formats and in vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from baton.core.request import TokenLogprobs
from baton.server.token_texts import OffsetCounter, TokenTexts
from baton.wire.openai.chat import ChatLogprobs, TokenLogprob, TopLogprob
from baton.wire.openai.common import PromptLogprob, PromptLogprobs
from baton.wire.openai.completions import CompletionLogprobs

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""
Name = Callable[[int], str]


def token_name(texts: TokenTexts, *, as_ids: bool) -> Name:
    """How tokens are shown: their text, or "token_id:5" (return_tokens_as_token_ids)."""
    return (lambda token_id: f"token_id:{token_id}") if as_ids else texts.text


def completion_logprobs(
    entries: Iterable[tuple[int, TokenLogprobs | None]], name: Name, top: int, offsets: OffsetCounter
) -> CompletionLogprobs:
    """The four lists of /v1/completions.

    Args:
        entries: (token id, its logprobs); None for the first token of a prompt.
        top: candidates a token; the token itself is added where it is not one of them.
    """
    result = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    for token_id, entry in entries:
        result.text_offset.append(offsets.push(token_id))
        result.tokens.append(name(token_id))
        result.token_logprobs.append(None if entry is None else _finite(entry.logprob))
        result.top_logprobs.append(None if entry is None else _candidates(entry, name, top))
    return result


def _candidates(entry: TokenLogprobs, name: Name, top: int) -> dict[str, float]:
    candidates: dict[str, float] = {}
    for token_id, logprob in (*entry.top[:top], (entry.token_id, entry.logprob)):
        candidates.setdefault(name(token_id), _finite(logprob))
    return candidates


def chat_logprobs(entries: Iterable[TokenLogprobs], texts: TokenTexts, name: Name, top: int) -> ChatLogprobs:
    """The list of /v1/chat/completions."""

    def candidate(token_id: int, logprob: float) -> TopLogprob:
        return TopLogprob(token=name(token_id), logprob=_finite(logprob), bytes=list(texts.raw(token_id)))

    return ChatLogprobs(
        content=[
            TokenLogprob(
                token=name(entry.token_id),
                logprob=_finite(entry.logprob),
                bytes=list(texts.raw(entry.token_id)),
                top_logprobs=[candidate(*pair) for pair in entry.top[:top]],
            )
            for entry in entries
        ]
    )


def prompt_logprobs(entries: Sequence[TokenLogprobs], texts: TokenTexts, top: int) -> PromptLogprobs:
    """vLLM's `prompt_logprobs`: candidates by token id, the prompt's own token among them."""
    result: PromptLogprobs = [None]
    for entry in entries:
        ranked = {token_id: (logprob, place + 1) for place, (token_id, logprob) in enumerate(entry.top[:top])}
        ranked.setdefault(entry.token_id, (entry.logprob, entry.rank))
        result.append(
            {
                token_id: PromptLogprob(logprob=_finite(logprob), rank=rank, decoded_token=texts.text(token_id))
                for token_id, (logprob, rank) in ranked.items()
            }
        )
    return result


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
