"""What the scheduler asks of a runner for one forward pass, and what comes back.

A runner keeps two tables by slot (a slot is a row owned by one sequence while it is RUNNING):
the tokens of the sequence and its block ids. A step carries only what changed in them, so that a step
is small however long the sequences are, and can be sent to other ranks as it is.

Order inside a step: admissions and new blocks are applied, the forward pass runs, sampled tokens are written
into the token table at their position (so step n+1 may be planned, and queued, before the host knows them),
then copies.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.request import Request, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sequence takes a slot: overwrite the slot's rows.

    Attributes:
        token_ids: every token known so far (prompt, and outputs when it resumes after preemption).
        index: which of the request's n sequences; with the seed it keys the random numbers.
        block_ids: blocks it starts with (prefix hits first).
    """

    slot: int
    request: Request
    index: int
    token_ids: tuple[int, ...]
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Tokens [start, start + num_tokens) of the sequence in `slot` to run through the model.

    Attributes:
        new_block_ids: blocks appended to the slot's table at position first_new_block.
        prompt_logprobs: how many top logprobs to report for the prompt tokens that follow each computed position;
            None when not wanted.
    """

    slot: int
    start: int
    num_tokens: int
    first_new_block: int = 0
    new_block_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """Sample one token from the last position of chunks[chunk] into the token table of `slot`.

    Attributes:
        slot: usually the chunk's own; another one when a sequence is forked (n > 1).
        position: index of the new token in the sequence = number of tokens before it.
        num_output_tokens: outputs before this one (min_tokens, penalties).
    """

    chunk: int
    slot: int
    position: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass. Chunks of one token that continue a sequence (decodes) come first.

    Attributes:
        number: grows by one per step; the fence rule counts in it.
        copies: (source block, destination block), whole blocks, executed after the forward pass.
    """

    number: int
    admissions: tuple[Admission, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    samples: tuple[SampleRow, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens that run through the model in this step."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Outcome of one step.

    Attributes:
        token_ids: one per Step.samples, in order.
        logprobs: one per Step.samples; None where the request did not ask.
        prompt_logprobs: one tuple per Step.chunks, for prompt tokens start+1 .. start+num_tokens that exist;
            empty where not asked for.
        failed: places in Step.samples whose sequence cannot go on (its grammar cannot be followed): the
            sequence ends with FinishReason.ERROR and the sampled token is dropped.
    """

    number: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...]
    failed: frozenset[int] = frozenset()
