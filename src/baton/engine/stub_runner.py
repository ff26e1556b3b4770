"""A runner without a model: executes steps on integers, and fails loudly if the scheduler fed it wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from zlib import crc32

from baton.core.request import Request, TokenLogprobs
from baton.core.step import Admission, Chunk, SampleRow, Step, StepResult

_MASK = (1 << 64) - 1
_EMPTY = 0x9E3779B97F4A7C15
UNWRITTEN = -1
POISON = -2


def mix(*values: int) -> int:
    """A 64-bit hash of integers, the same in every process (splitmix64 finaliser, chained)."""
    state = _EMPTY
    for value in values:
        state = (state + value * 0xBF58476D1CE4E5B9 + _EMPTY) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


@dataclass(slots=True)
class _Row:
    """One slot: its sequence's tokens, the hash of each prefix (as far as needed), and its blocks."""

    request: Request
    index: int
    tokens: list[int]
    blocks: list[int]
    hashes: list[int] = field(default_factory=list)


class StubRunner:
    """Stands in for a model: the next token is a hash of (seed, index, all tokens before it).

    The KV of a token is simulated by the hash of its whole prefix. Every chunk asserts that each position it
    attends to holds exactly that, under the request's salt: a wrong block, a missed write, copy or token, and a
    block overwritten too early are all loud.

    Args:
        block_tokens: tokens of one block.
        vocab_size: sampled tokens are in [0, vocab_size).
        eos_rate: share of samples that yield the request's smallest eos token (not before min_tokens).
    """

    def __init__(self, block_tokens: int, vocab_size: int, eos_rate: float = 0.0) -> None:
        self.block_tokens = block_tokens
        self.vocab_size = vocab_size
        self._eos_threshold = int(eos_rate * (_MASK + 1))
        self._rows: dict[int, _Row] = {}
        self._kv: dict[int, list[int]] = {}
        self._salts: dict[int, int] = {}

    def execute(self, step: Step) -> StepResult:
        """Run one step; steps come in the order of their numbers.

        Raises:
            AssertionError: the step contradicts an earlier one, or reads KV that is not there.
        """
        for admission in step.admissions:
            self._admit(admission)
        for chunk in step.chunks:
            self._run(chunk)
        tokens = tuple(self._sample(step.chunks[row.chunk], row) for row in step.samples)
        for row, token in zip(step.samples, tokens, strict=True):
            self._rows[row.slot].tokens.append(token)
        for source, target in step.copies:
            self.write_block(target, self._kv[source], self._salts[source])
        return StepResult(
            number=step.number,
            token_ids=tokens,
            logprobs=tuple(self._logprob(row, token) for row, token in zip(step.samples, tokens, strict=True)),
            prompt_logprobs=tuple(self._prompt_logprobs(chunk) for chunk in step.chunks),
        )

    def write_block(self, block: int, values: list[int], salt: int = UNWRITTEN) -> None:
        """Overwrite a whole block (a copy; in tests, the network)."""
        self._kv[block] = values[:]
        self._salts[block] = salt

    def read_tokens(self, blocks: Sequence[int], first: int, last: int) -> tuple[list[int], int]:
        """The KV of tokens [first, last) of these blocks, in order, and its salt: what a transfer carries."""
        size = self.block_tokens
        values = [self._kv[blocks[i // size]][i % size] for i in range(first, last)]
        return values, self._salts[blocks[first // size]] if values else UNWRITTEN

    def write_tokens(self, blocks: Sequence[int], first: int, values: Sequence[int], salt: int) -> None:
        """Put KV from another runner, of any block size, into tokens [first, ..) of these blocks."""
        for i, value in enumerate(values, start=first):
            block, offset = blocks[i // self.block_tokens], i % self.block_tokens
            self._kv.setdefault(block, [UNWRITTEN] * self.block_tokens)[offset] = value
            self._salts[block] = salt

    def poison(self, blocks: Sequence[int]) -> None:
        """Fill whole blocks with a value that no token has."""
        for block in blocks:
            self.write_block(block, [POISON] * self.block_tokens)

    def count_poisoned(self, blocks: Sequence[int], first_token: int, last_token: int) -> int:
        """Tokens [first_token, last_token) of these blocks, in order, that hold that value."""
        return self.read_tokens(blocks, first_token, last_token)[0].count(POISON)

    def continuation(self, request: Request, index: int, count: int) -> list[int]:
        """The outputs this runner samples for a sequence that never stops, without any step: the oracle of tests."""
        tokens = list(request.prompt_token_ids)
        hashes: list[int] = []
        for _ in range(count):
            _extend_hashes(hashes, tokens, len(tokens))
            tokens.append(self._next(request, index, hashes[-1], len(tokens)))
        return tokens[len(request.prompt_token_ids) :]

    def _admit(self, admission: Admission) -> None:
        # A landed sibling's first token may need the block that its first chunk brings.
        assert len(admission.token_ids) - 1 <= len(admission.block_ids) * self.block_tokens, admission
        self._rows[admission.slot] = _Row(
            admission.request, admission.index, list(admission.token_ids), list(admission.block_ids)
        )

    def _run(self, chunk: Chunk) -> None:
        row = self._rows[chunk.slot]
        end = chunk.start + chunk.num_tokens
        if chunk.new_block_ids:
            assert chunk.first_new_block == len(row.blocks), f"{chunk} appends to a table of {len(row.blocks)}"
            row.blocks += chunk.new_block_ids
        assert end <= len(row.tokens), f"{chunk} runs past the {len(row.tokens)} tokens of its slot"
        assert end <= len(row.blocks) * self.block_tokens, f"{chunk} runs past its {len(row.blocks)} blocks"
        assert len(set(row.blocks)) == len(row.blocks), f"a block twice in {row.blocks}"
        _extend_hashes(row.hashes, row.tokens, end)
        salt = crc32(row.request.cache_salt.encode())
        for position in range(chunk.start, end):
            block, offset = row.blocks[position // self.block_tokens], position % self.block_tokens
            self._kv.setdefault(block, [UNWRITTEN] * self.block_tokens)[offset] = row.hashes[position]
            self._salts[block] = salt
        self._attend(row, end, salt)

    def _attend(self, row: _Row, end: int, salt: int) -> None:
        """Assert that positions [0, end) of the row's blocks hold the row's own prefixes."""
        size = self.block_tokens
        for first in range(0, end, size):
            block = row.blocks[first // size]
            want = row.hashes[first : min(first + size, end)]
            have = self._kv.get(block, [])[: len(want)]
            assert have == want, f"{row.request.request_id}: block {block} holds {have}, not {want} of {first}"
            assert self._salts[block] == salt, f"{row.request.request_id}: block {block} is of another salt"

    def _sample(self, chunk: Chunk, sample: SampleRow) -> int:
        assert sample.position == chunk.start + chunk.num_tokens, (chunk, sample)
        row, source = self._rows[sample.slot], self._rows[chunk.slot]
        assert sample.position == len(row.tokens), f"{sample} in a slot of {len(row.tokens)} tokens"
        assert row.tokens == source.tokens[: sample.position], "a fork of a different sequence"
        num_prompt = len(row.request.prompt_token_ids)
        assert sample.num_output_tokens == sample.position - num_prompt >= 0, (sample, num_prompt)
        return self._next(row.request, row.index, source.hashes[sample.position - 1], sample.position)

    def _next(self, request: Request, index: int, prefix_hash: int, position: int) -> int:
        value = mix(request.params.seed or 0, index, prefix_hash, position)
        if mix(value) < self._eos_threshold and request.eos_token_ids:
            num_outputs = position - len(request.prompt_token_ids)
            if num_outputs >= request.params.min_tokens:
                return min(request.eos_token_ids)
        return value % self.vocab_size

    def _logprob(self, sample: SampleRow, token: int) -> TokenLogprobs | None:
        top = self._rows[sample.slot].request.params.logprobs
        return None if top is None else _token_logprobs(token, sample.position, top)

    def _prompt_logprobs(self, chunk: Chunk) -> tuple[TokenLogprobs, ...]:
        if chunk.prompt_logprobs is None:
            return ()
        prompt = self._rows[chunk.slot].request.prompt_token_ids
        last = min(chunk.start + chunk.num_tokens, len(prompt) - 1)
        return tuple(_token_logprobs(prompt[i], i, chunk.prompt_logprobs) for i in range(chunk.start + 1, last + 1))


def _extend_hashes(hashes: list[int], tokens: list[int], end: int) -> None:
    """Make hashes[i] the hash of tokens[: i + 1] for all i < end."""
    for i in range(len(hashes), end):
        hashes.append(mix(hashes[i - 1] if i else _EMPTY, tokens[i]))


def _token_logprobs(token: int, position: int, top: int) -> TokenLogprobs:
    """A made-up value that depends on token and position, so that a shifted list is seen."""
    logprob = -(mix(token, position) % 1000) / 100
    return TokenLogprobs(token_id=token, logprob=logprob, rank=1, top=((token, logprob),) * min(top, 1))
