"""Bodies of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton.wire.openai.common import GenerationFields, Int, PromptLogprobs, Usage
from baton.wire.openai.handoff import TicketParams


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """A conversation to be answered. Messages stay open objects: the chat template reads them as they are."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    echo: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: list[Any] | None = None
    function_call: Any = None


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate for one token. bytes: of the token, also where it is only a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the answer and the most likely candidates in its place."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """One entry a token of the answer."""

    content: list[TokenLogprob]


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a function, or in a stream a part of one. arguments: JSON text."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of a whole answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ToolCallChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a tool call: id, type and name come with the first part only."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCall


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's answer."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    kv_transfer_params: TicketParams | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to one answer. The role comes with its opening chunk only."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallChunk] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk's part of one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. usage: only where asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: TicketParams | UnsetType = UNSET
