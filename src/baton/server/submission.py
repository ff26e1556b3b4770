"""From a prompt and its parameters to a request that the engine will take."""

from __future__ import annotations

from dataclasses import replace

from baton.core.errors import RequestError
from baton.core.handoff import Handoff
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.validation import check_request
from baton.server.state import ServerState
from baton.text.bad_words import bad_words_token_ids
from baton.wire.openai.common import GenerationFields


def engine_request(
    server: ServerState,
    ask: GenerationFields,
    params: SamplingParams,
    token_ids: list[int],
    request_id: str,
    handoff: Handoff | None = None,
) -> Request:
    """A request with everything filled in that only the server knows: seed, bad words as tokens, the model's ends.

    Raises:
        RequestError: the model cannot run it.
    """
    info = server.engine.info
    if params.seed is None:
        params = replace(params, seed=server.seeds.getrandbits(63))
    if params.bad_words:
        params = replace(
            params, bad_words=(), bad_words_token_ids=bad_words_token_ids(server.tokenizer, params.bad_words)
        )
    if params.stop and server.tokenizer_or_none is None:
        raise RequestError("stop needs a tokenizer and the model has none; use stop_token_ids", param="stop")
    request = Request(
        request_id=request_id,
        prompt_token_ids=tuple(token_ids),
        params=params,
        priority=ask.priority or 0,
        cache_salt=ask.cache_salt or "",
        eos_token_ids=info.eos_token_ids,
        handoff=handoff,
        resumed=tuple(ask.resume_token_ids or ()),
    )
    check_request(request, vocab_size=info.vocab_size, max_model_len=info.max_model_len)
    return request
