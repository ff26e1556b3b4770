"""--enable-log-requests: a line when a request starts and one when it ends. Texts are never logged."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.request import Request
from baton.obs.log import get_logger
from baton.text.outputs import RequestOutput

_log = get_logger(__name__)


def log_start(requests: Sequence[Request]) -> None:
    """What is submitted; one HTTP request may have several prompts, all with the same parameters."""
    first = requests[0]
    params = first.params
    _log.info(
        "%s: prompts=%d, tokens=%d, n=%d, max_tokens=%s, temperature=%g",
        first.request_id,
        len(requests),
        sum(len(request.prompt_token_ids) for request in requests),
        params.n,
        params.max_tokens,
        params.temperature,
    )


def log_end(outputs: Sequence[RequestOutput], ending: str | None, seconds: float) -> None:
    """What came of it.

    Args:
        ending: why the server ended it; None when it ran to its end.
    """
    choices = [choice for output in outputs for choice in output.outputs]
    reasons = sorted({choice.finish_reason or "unfinished" for choice in choices})
    _log.info(
        "%s: %d tokens in %.3f s, %s",
        outputs[0].request_id,
        sum(len(choice.token_ids) for choice in choices),
        seconds,
        ending or ", ".join(reasons),
    )
