"""A step while it is being planned, and the record of it that waits for the result."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.core.request import TokenLogprobs
from baton.core.step import Admission, Chunk, SampleRow, Step
from baton.sched.sequence import Sequence


class Planned(NamedTuple):
    """One chunk, or one sample, of a step in flight.

    Attributes:
        run: the sequence's run it belongs to.
        num_tokens: tokens of the sequence that are computed when the step completes.
        gathered: where its prompt logprobs go (chunk), or come from (sample).
    """

    seq: Sequence
    run: int
    num_tokens: int
    gathered: list[TokenLogprobs]


@dataclass(slots=True, eq=False)
class StepDraft:
    """Collects the parts of one step. Decodes must be added before prefills.

    Attributes:
        budget: tokens that still fit.
        preempted: this step took blocks from a sequence; nobody is admitted or forked in it.
        used: sequences whose blocks the step reads or writes.
    """

    number: int
    budget: int
    preempted: bool = False
    admissions: list[Admission] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    planned_chunks: list[Planned] = field(default_factory=list)
    planned_samples: list[Planned] = field(default_factory=list)
    used: set[Sequence] = field(default_factory=set)

    def admit(self, seq: Sequence, blocks: tuple[int, ...]) -> None:
        """The sequence overwrites its slot's rows."""
        self.used.add(seq)
        self.admissions.append(
            Admission(
                slot=seq.slot, request=seq.request, index=seq.index, token_ids=tuple(seq.tokens), block_ids=blocks
            )
        )

    def run(self, seq: Sequence, num_tokens: int, table_len: int = 0, new_blocks: Seq[int] = ()) -> bool:
        """Run the next num_tokens of a sequence, and sample if they are its last.

        Args:
            table_len: blocks the runner knows already; new_blocks follow them.

        Returns:
            Whether a token is sampled.
        """
        start = seq.num_planned_tokens
        gathers = seq.gathers_prompt_logprobs and start + 1 < seq.num_prompt_tokens
        samples = seq.plan(num_tokens)
        self.used.add(seq)
        self.budget -= num_tokens
        self.chunks.append(
            Chunk(
                slot=seq.slot,
                start=start,
                num_tokens=num_tokens,
                first_new_block=table_len,
                new_block_ids=tuple(new_blocks),
                prompt_logprobs=seq.request.params.prompt_logprobs if gathers else None,
            )
        )
        planned = Planned(seq, seq.run, start + num_tokens, seq.gathered)
        self.planned_chunks.append(planned)
        if samples:
            self._sample(planned)
        return samples

    def fork(self, child: Sequence, parent: Sequence, blocks: tuple[int, ...], copies: Seq[tuple[int, int]]) -> None:
        """A sibling takes a slot and samples its own token from the parent's chunk, which was added last."""
        self.admit(child, blocks)
        self.copies.extend(copies)
        self._sample(Planned(child, child.run, child.num_planned_tokens, parent.gathered))

    def fork_landed(self, child: Sequence, blocks: tuple[int, ...], copies: Seq[tuple[int, int]]) -> None:
        """A sibling takes a slot and copies of landed blocks; it knows its first token and runs in the next step."""
        self.admit(child, blocks)
        self.copies.extend(copies)

    def _sample(self, planned: Planned) -> None:
        """Sample the token after the last chunk into the slot of a sequence that ends there too."""
        seq, position = planned.seq, planned.num_tokens
        self.samples.append(
            SampleRow(
                chunk=len(self.chunks) - 1,
                slot=seq.slot,
                position=position,
                num_output_tokens=position - seq.num_prompt_tokens,
            )
        )
        self.planned_samples.append(planned)

    def build(self) -> Step:
        """The finished step."""
        return Step(
            number=self.number,
            admissions=tuple(self.admissions),
            chunks=tuple(self.chunks),
            samples=tuple(self.samples),
            copies=tuple(self.copies),
        )
