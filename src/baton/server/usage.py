"""Token counts of an answer."""

from __future__ import annotations

from collections.abc import Iterable

from baton.text.outputs import OutputCollector
from baton.wire.openai.common import PromptTokensDetails, Usage


def usage_of(num_prompt: int, num_output: int, num_cached: int) -> Usage:
    """The body's `usage`."""
    return Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_output,
        total_tokens=num_prompt + num_output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
    )


def total_usage(collectors: Iterable[OutputCollector]) -> Usage:
    """Of all prompts and choices together."""
    outputs = [collector.output for collector in collectors]
    return usage_of(
        sum(len(output.prompt_token_ids) for output in outputs),
        sum(len(choice.token_ids) for output in outputs for choice in output.outputs),
        sum(output.num_cached_tokens for output in outputs),
    )
