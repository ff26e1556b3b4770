"""Prompts of a request as token ids: texts are encoded, conversations rendered by the chat template first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.core.errors import RequestError
from baton.server.state import ServerState
from baton.wire.openai.chat import ChatRequest
from baton.wire.openai.completions import CompletionRequest
from baton.wire.openai.text import TokenizeRequest

INLINE_CHARS = 20_000
"""Longer texts (of all prompts together) are encoded in a thread: every stream would stand still meanwhile."""
MAX_MESSAGES = 16_384
MAX_TOOLS = 1024
_MESSAGE_CHARS = 64  # that rendering an empty message is worth
_RESERVED = frozenset(("self", "messages", "tools", "add_generation_prompt", "chat_template"))
_MARK = "\ue000baton-end-of-message\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt. text: None when it was given as token ids."""

    text: str | None
    token_ids: list[int]


async def encode(server: ServerState, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Token ids of texts, each for itself.

    Raises:
        RequestError: no tokenizer, or no valid Unicode.
    """
    tokenizer = server.tokenizer

    def encode_all() -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    if sum(map(len, texts)) <= INLINE_CHARS:
        return encode_all()
    return await asyncio.to_thread(encode_all)


async def completion_prompts(server: ServerState, ask: CompletionRequest) -> list[Prompt]:
    """The prompts of /v1/completions, in order.

    Raises:
        RequestError: none, or not of one of the four forms.
    """
    texts, ids = _split(ask.prompt)
    if not texts:
        return [Prompt(text=None, token_ids=each) for each in ids]
    ids = await encode(server, texts, add_special_tokens=ask.add_special_tokens is not False)
    return [Prompt(text=text, token_ids=each) for text, each in zip(texts, ids, strict=True)]


def _split(prompt: str | Sequence[int | str | list[int]] | None) -> tuple[list[str], list[list[int]]]:
    """The four forms as texts or lists of token ids; one of the two is empty."""
    if prompt is None:
        raise RequestError("prompt is required", param="prompt")
    if not prompt and not isinstance(prompt, str):
        raise RequestError("prompt must not be an empty list", param="prompt")
    entries: Sequence[int | str | list[int]] = [prompt] if isinstance(prompt, str) else prompt
    texts = [each for each in entries if isinstance(each, str)]
    ids = [each for each in entries if isinstance(each, int)]
    lists = [each for each in entries if isinstance(each, list)]
    if len(entries) not in (len(texts), len(ids), len(lists)):
        raise RequestError("prompt must be all texts, all token ids or all lists of token ids", param="prompt")
    _check_ids(ids, "prompt")
    for place, each in enumerate(lists):
        _check_ids(each, f"prompt.{place}")
    return texts, [ids] if ids else lists


def _check_ids(ids: list[int], path: str) -> None:
    if ids and min(ids) < 0:
        place = next(i for i, token in enumerate(ids) if token < 0)
        raise RequestError(
            f"{path}.{place}: a token id must not be negative, got {ids[place]}", param=f"{path}.{place}"
        )


async def chat_prompt(
    server: ServerState, ask: ChatRequest | TokenizeRequest, tools: Sequence[Mapping[str, Any]] | None = None
) -> Prompt:
    """A conversation as the model sees it.

    Args:
        tools: as the chat template gets them.

    Raises:
        RequestError: malformed messages, or the template refuses them.
    """
    messages = ask.messages or []
    check_messages(messages)
    num_chars = sum(_MESSAGE_CHARS + len(str(message.get("content"))) for message in messages)
    if num_chars > INLINE_CHARS or ask.chat_template is not None:
        text = await asyncio.to_thread(render, server, ask, messages, tools)
    else:
        text = render(server, ask, messages, tools)
    add = bool(ask.add_special_tokens)
    (token_ids,) = await encode(server, [text], add_special_tokens=add)
    return Prompt(text=text, token_ids=token_ids)


def render(
    server: ServerState,
    ask: ChatRequest | TokenizeRequest,
    messages: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str:
    """The conversation as text; with continue_final_message it ends inside the last message.

    Raises:
        RequestError: the template refuses.
    """
    if ask.chat_template is not None and not server.config.trust_request_chat_template:
        raise RequestError(
            "chat_template is refused: this server was not started with --trust-request-chat-template",
            param="chat_template",
        )
    continues = bool(ask.continue_final_message)
    generation = (not continues) if ask.add_generation_prompt is None else ask.add_generation_prompt
    if continues and generation:
        raise RequestError(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    text = server.tokenizer.render_chat(
        _marked(messages) if continues else messages,
        tools=tools,
        add_generation_prompt=generation,
        chat_template=ask.chat_template or server.config.chat_template,
        **_template_kwargs(ask),
    )
    return _cut(text) if continues else text


def _template_kwargs(ask: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    kwargs = dict(ask.chat_template_kwargs or {})
    clash = _RESERVED & set(kwargs)
    if clash:
        raise RequestError(
            f"chat_template_kwargs must not contain {', '.join(sorted(clash))}", param="chat_template_kwargs"
        )
    if isinstance(ask, ChatRequest):
        if ask.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", ask.reasoning_effort)
        if ask.documents is not None:
            kwargs.setdefault("documents", ask.documents)
    return kwargs


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark behind the last text: templates may trim texts and add to them, a mark they keep."""
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        content = "\n".join(part if isinstance(part, str) else part["text"] for part in content)
    if not isinstance(content, str) or not content:
        raise RequestError("continue_final_message needs text in the last message", param="messages")
    return [*messages[:-1], {**last, "content": content + _MARK}]


def _cut(text: str) -> str:
    place = text.rfind(_MARK)
    if place < 0:
        raise RequestError(
            "the chat template does not show the last message; continue_final_message cannot work", param="messages"
        )
    return text[:place]


def check_counts(ask: ChatRequest | TokenizeRequest) -> None:
    """Refuse more messages or tools than can be walked while all streams wait.

    Raises:
        RequestError: naming the field.
    """
    for param, entries, limit in (("messages", ask.messages, MAX_MESSAGES), ("tools", ask.tools, MAX_TOOLS)):
        if entries is not None and len(entries) > limit:
            raise RequestError(f"{param} must have at most {limit} entries, got {len(entries)}", param=param)


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Refuse what no template could render; roles are the template's to judge.

    Raises:
        RequestError: naming the place.
    """
    if not messages:
        raise RequestError("messages must not be empty", param="messages")
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise RequestError(f"messages.{i}.role must be text", param=f"messages.{i}.role")
        if content is None:
            if role != "assistant":
                raise RequestError(f"messages.{i}.content is required", param=f"messages.{i}.content")
        elif isinstance(content, list):
            for j, part in enumerate(content):
                _check_part(part, f"messages.{i}.content.{j}")
        elif not isinstance(content, str):
            raise RequestError(
                f"messages.{i}.content must be text or a list of text parts", param=f"messages.{i}.content"
            )
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise RequestError(f"messages.{i}.tool_calls must be a list of objects", param=f"messages.{i}.tool_calls")


def _check_part(part: object, path: str) -> None:
    if isinstance(part, str):
        return
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "text" and isinstance(part, dict) and isinstance(part.get("text"), str):
        return
    raise RequestError(f"{path}: parts of type {kind} are not supported, only text", param=path)
