"""POST /v1/chat/completions: what is asked of the engine."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.server.asking import Asking, read_ask
from baton.server.chat_answer import ChatAnswer
from baton.server.generation import Generation
from baton.server.params import fit_max_tokens, sampling_params, truncated
from baton.server.prompts import Prompt, chat_prompt, check_counts
from baton.server.stream import events
from baton.server.submission import engine_request
from baton.server.tools.choice import ToolUse, parse_tool_use
from baton.web.sse import EventStream
from baton.wire.openai.chat import ChatRequest

_UNSUPPORTED = {
    "echo": "echo is not supported for chats",
    "audio": "audio is not supported",
    "functions": "functions is not supported; use tools",
    "function_call": "function_call is not supported; use tool_choice",
}


async def create_chat(http: HttpRequest) -> Response:
    """Answer a conversation, as a whole or as a stream."""
    ask = await read_ask(http, ChatRequest, "chatcmpl")
    body = ask.body
    _refuse_unsupported(body)
    tools = parse_tool_use(
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        format=ask.server.tool_format,
    )
    prompt = await chat_prompt(ask.server, body, tools.template)
    limit = body.truncate_prompt_tokens
    if limit is not None:
        prompt = Prompt(text=None, token_ids=truncated(prompt.token_ids, limit, ask.server.engine.info.max_model_len))
    request = _request(ask, prompt, tools)
    answer = ChatAnswer(ask, tools)
    generation = Generation(ask.server, [request], [prompt.text], http.receive, ask.arrival_s, http.headers)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(generation)
        # The headers wait for the first output: what the engine refuses is then still a plain 400.
        first = await generation.next()
        if body.stream:
            pieces = events(generation, first, answer, ask.interval, shows_tokens=ask.shows_tokens)
            return EventStream(pieces, stack.pop_all(), generation.deadline_s)
        await generation.finish(first)
        whole = answer.whole(generation.collectors[0], generation.ticket)
        return Response(msgspec.json.encode(whole), media_type="application/json")


def _refuse_unsupported(body: ChatRequest) -> None:
    check_counts(body)
    for name, message in _UNSUPPORTED.items():
        if getattr(body, name):
            raise RequestError(message, param=name)
    if body.modalities is not None and body.modalities != ["text"]:
        raise RequestError("modalities must be ['text']", param="modalities")
    if body.top_logprobs is not None and body.top_logprobs != 0 and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")


def _request(ask: Asking[ChatRequest], prompt: Prompt, tools: ToolUse) -> Request:
    body, server = ask.body, ask.server
    top = body.top_logprobs or 0
    if not 0 <= top <= server.config.max_logprobs:
        raise RequestError(
            f"top_logprobs must be between 0 and {server.config.max_logprobs}, got {top}", param="top_logprobs"
        )
    grammar = ask.grammar()  # a malformed one is refused even where a forced call takes its place
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    params = sampling_params(
        body,
        n=body.num_choices,
        max_tokens=fit_max_tokens(
            asked,
            None,
            num_prompt=len(prompt.token_ids),
            max_model_len=server.engine.info.max_model_len,
            param="messages",
        ),
        logprobs=top if body.logprobs else None,
        grammar=tools.grammar or grammar,
        max_logprobs=server.config.max_logprobs,
    )
    return engine_request(server, body, params, prompt.token_ids, server.engine_id(ask.id), ask.handoff)
