"""POST /tokenize and /detokenize, GET /tokenizer_info: the server's tokenizer for clients that have none."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from baton.core.errors import RequestError
from baton.server.prompts import INLINE_CHARS, chat_prompt, check_counts, encode
from baton.server.state import ServerState, state_of
from baton.wire.openai.decode import decode
from baton.wire.openai.text import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest


async def tokenize(http: HttpRequest) -> Response:
    """Token ids of a text or of a rendered conversation."""
    server = state_of(http)
    ask = decode(await server.bodies.read(http), TokenizeRequest)
    server.check_model(ask.model)
    token_ids = await _token_ids(server, ask)
    texts = [server.token_texts.text(token_id) for token_id in token_ids] if ask.return_token_strs else None
    max_model_len = server.engine.info.max_model_len
    return _json(Tokenized(count=len(token_ids), max_model_len=max_model_len, tokens=token_ids, token_strs=texts))


async def _token_ids(server: ServerState, ask: TokenizeRequest) -> list[int]:
    if (ask.prompt is None) == (ask.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if ask.prompt is not None:
        (token_ids,) = await encode(server, [ask.prompt], add_special_tokens=ask.add_special_tokens is not False)
        return token_ids
    check_counts(ask)
    return (await chat_prompt(server, ask, ask.tools)).token_ids


async def detokenize(http: HttpRequest) -> Response:
    """Text of token ids, special tokens included."""
    server = state_of(http)
    ask = decode(await server.bodies.read(http), DetokenizeRequest)
    server.check_model(ask.model)
    vocab_size = server.engine.info.vocab_size
    if ask.tokens and not 0 <= min(ask.tokens) <= max(ask.tokens) < vocab_size:
        place = next(i for i, token_id in enumerate(ask.tokens) if not 0 <= token_id < vocab_size)
        raise RequestError(
            f"tokens.{place}: {ask.tokens[place]} is outside the vocabulary of {vocab_size}", param=f"tokens.{place}"
        )
    decode_tokens = partial(server.tokenizer.decode, ask.tokens, skip_special_tokens=False)
    long = len(ask.tokens) > INLINE_CHARS
    return _json(Detokenized(prompt=await asyncio.to_thread(decode_tokens) if long else decode_tokens()))


async def tokenizer_info(http: HttpRequest) -> Response:
    """What lm-eval's remote tokenizer reads: special tokens, end tokens, the chat template."""
    server = state_of(http)
    tokenizer = server.tokenizer
    eos = sorted(server.engine.info.eos_token_ids | tokenizer.eos_token_ids)
    return JSONResponse(
        {
            **tokenizer.special_tokens,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "vocab_size": tokenizer.vocab_size,
            "model_max_length": server.engine.info.max_model_len,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": eos[0] if len(eos) == 1 else eos,
            "chat_template": server.config.chat_template or tokenizer.chat_templates.get("default"),
        }
    )


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
