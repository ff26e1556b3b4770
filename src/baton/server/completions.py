"""POST /v1/completions: what is asked of the engine."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.server.asking import Asking, read_ask
from baton.server.completion_answer import CompletionAnswer
from baton.server.generation import Generation
from baton.server.params import MAX_N, fit_max_tokens, is_greedy, sampling_params, truncated
from baton.server.prompts import Prompt, completion_prompts
from baton.server.stream import events
from baton.server.submission import engine_request
from baton.web.sse import EventStream
from baton.wire.openai.completions import CompletionRequest

_DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 4096
"""Prompts times choices of one request: each is a sequence in the engine and a text that is being built."""


async def create_completion(http: HttpRequest) -> Response:
    """Complete one or several prompts, as a whole or as a stream."""
    ask = await read_ask(http, CompletionRequest, "cmpl")
    body = ask.body
    _refuse_unsupported(ask)
    prompts = [_cut(ask, prompt) for prompt in await completion_prompts(ask.server, body)]
    requests = [_request(ask, prompt) for prompt in prompts]
    answer = CompletionAnswer(ask, prompts)
    generation = Generation(
        ask.server, requests, [prompt.text for prompt in prompts], http.receive, ask.arrival_s, http.headers
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(generation)
        # The headers wait for the first output: what the engine refuses is then still a plain 400.
        first = await generation.next()
        if body.stream:
            pieces = events(generation, first, answer, ask.interval, shows_tokens=ask.shows_tokens)
            return EventStream(pieces, stack.pop_all(), generation.deadline_s)
        await generation.finish(first)
        whole = answer.whole(generation.collectors, generation.ticket)
        return Response(msgspec.json.encode(whole), media_type="application/json")


def _refuse_unsupported(ask: Asking[CompletionRequest]) -> None:
    body = ask.body
    if body.suffix:
        raise RequestError("suffix is not supported", param="suffix")
    if body.prompt_embeds is not None:
        raise RequestError("prompt_embeds is not supported; give text or token ids", param="prompt_embeds")
    if body.best_of is not None:
        if body.best_of < body.num_choices:
            raise RequestError(f"best_of must be at least n={body.num_choices}, got {body.best_of}", param="best_of")
        if body.best_of > MAX_N:
            raise RequestError(f"best_of must be at most {MAX_N}, got {body.best_of}", param="best_of")
        if body.best_of > 1 and is_greedy(body.temperature):
            raise RequestError(
                f"best_of must be 1 with temperature 0 (all choices would be the same), got {body.best_of}",
                param="best_of",
            )
        if body.stream and body.best_of > body.num_choices:
            raise RequestError("best_of is not possible with stream=true", param="best_of")
    for name, given in (("kv_transfer_params", ask.handoff), ("resume_token_ids", body.resume_token_ids)):
        if given and _num_prompts(body) > 1:
            raise RequestError(f"{name} needs one prompt; send a request for each", param="prompt")
    if body.resume_token_ids and body.score_only:
        raise RequestError("resume_token_ids goes on with an answer; max_tokens=0 has none", param="resume_token_ids")
    num_choices = _num_prompts(body) * min(MAX_N, max(1, body.best_of or body.num_choices))
    if num_choices > MAX_CHOICES:
        raise RequestError(
            f"prompts times choices must be at most {MAX_CHOICES}, got {num_choices}; send several requests",
            param="prompt",
        )


def _num_prompts(body: CompletionRequest) -> int:
    """Prompts before they are checked; a list of token ids is one."""
    if body.prompt is None or isinstance(body.prompt, str):
        return 1
    return max(1, sum(not isinstance(entry, int) for entry in body.prompt))


def _cut(ask: Asking[CompletionRequest], prompt: Prompt) -> Prompt:
    limit = ask.body.truncate_prompt_tokens
    if limit is None:
        return prompt
    return Prompt(text=None, token_ids=truncated(prompt.token_ids, limit, ask.server.engine.info.max_model_len))


def _request(ask: Asking[CompletionRequest], prompt: Prompt) -> Request:
    body = ask.body
    best_of = body.best_of or body.num_choices
    params = sampling_params(
        body,
        n=best_of,
        max_tokens=fit_max_tokens(
            1 if body.score_only else body.max_tokens,
            _DEFAULT_MAX_TOKENS,
            num_prompt=len(prompt.token_ids),
            max_model_len=ask.server.engine.info.max_model_len,
            param="prompt",
        ),
        # The best of several is found by logprobs, so they are needed even if nobody sees them.
        logprobs=0 if body.logprobs is None and best_of > body.num_choices else body.logprobs,
        grammar=ask.grammar(),
        max_logprobs=ask.server.config.max_logprobs,
    )
    if body.echo and body.logprobs is not None:
        params = replace(params, prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    return engine_request(ask.server, body, params, prompt.token_ids, ask.server.engine_id(ask.id), ask.handoff)
