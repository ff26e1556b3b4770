"""Constrained decoding through xgrammar: compiled grammars, the state of one sequence, and the step's mask.

A mask needs every token before it, so a sequence with a grammar cannot be planned ahead of its sampled tokens.
xgrammar and transformers are loaded with the first grammar.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor

from baton.core.errors import RequestError
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.json_schema import check_schema
from baton.layers.constraints import TokenMask

if TYPE_CHECKING:
    import xgrammar
    from transformers import PreTrainedTokenizerFast

_CACHE_BYTES = 128 << 20
_MASK_S = 0.2
"""Processor time for one mask of one sequence. Usual grammars take about a millisecond; in a very ambiguous one, such
as ((a{0,100}){0,100}){0,100}, each token costs more than the last, and every other sequence waits."""
_CONTROL = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")


class GrammarState:
    """Where one sequence stands in its grammar.

    Attributes:
        stuck: no token of the vocabulary can continue what the grammar demands, or finding those that can took too
            long (seen by `fill`). Only the end is allowed then, and the sequence must be reported as an error: its
            text is incomplete.
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher, end_ids: frozenset[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._vocab_size = vocab_size
        self.stuck = False

    @property
    def ended(self) -> bool:
        """Whether an end-of-sequence token was accepted; only more of them may follow."""
        return bool(self._matcher.is_terminated())

    def accept(self, token_id: int) -> bool:
        """Move past a sampled token. False, and no move, if the grammar does not allow it."""
        if self.ended or self.stuck:
            return token_id in self._end_ids
        return bool(self._matcher.accept_token(token_id))

    def fill(self, bits: Tensor, row: int) -> None:
        """Write the tokens allowed next into row `row` of bits int32 [G, ceil(V / 32)] (host memory)."""
        if not self.ended:
            started_s = time.thread_time()
            self._matcher.fill_next_token_bitmask(bits, row)
            slow = time.thread_time() - started_s > _MASK_S
            if self._vocab_size % 32:  # bits beyond the vocabulary are arbitrary
                bits[row, -1] &= (1 << self._vocab_size % 32) - 1
            self.stuck = slow or not bits[row].any()
            if not self.stuck:
                return
        bits[row].fill_(0)
        for token in self._end_ids:
            bits[row, token // 32] |= _bit(token % 32)


class CompiledGrammar:
    """A grammar compiled for one tokenizer. Immutable; shared by sequences."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, end_ids: frozenset[int], vocab_size: int) -> None:
        self._compiled = compiled
        self._end_ids = end_ids
        self._vocab_size = vocab_size

    def start(self, output_token_ids: Iterable[int] = ()) -> GrammarState:
        """State of a sequence that has produced these tokens (empty for a new one).

        Raises:
            RequestError: the grammar does not allow them.
        """
        import xgrammar

        state = GrammarState(xgrammar.GrammarMatcher(self._compiled), self._end_ids, self._vocab_size)
        for token in output_token_ids:
            if not state.accept(token):
                raise RequestError(f"the output so far breaks the grammar at token {token}", param="grammar")
        return state


class GrammarCompiler:
    """Compiles grammars for one model; keeps recent results."""

    def __init__(
        self,
        tokenizer: FastTokenizer | PreTrainedTokenizerFast,
        *,
        eos_token_ids: Iterable[int],
        vocab_size: int,
        max_threads: int = 2,
    ) -> None:
        """
        Args:
            tokenizer: of the `tokenizers` library, or a fast one of transformers.
            eos_token_ids: the model's end-of-sequence tokens: allowed when the grammar is complete, and only then.
            vocab_size: of the model; ids beyond the tokenizer's are never allowed.
            max_threads: threads that one compilation may use.
        """
        self._tokenizer = tokenizer if isinstance(tokenizer, FastTokenizer) else tokenizer.backend_tokenizer
        self._vocab_size = vocab_size
        self._max_threads = max_threads
        self._end_ids = frozenset(token for token in eos_token_ids if 0 <= token < vocab_size)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, or take from the cache. Large grammars can take seconds: call it before admission.

        Raises:
            RequestError: the grammar is malformed, or asks for what cannot be enforced; param is "grammar".
        """
        if not self._end_ids:
            raise RequestError(
                "grammar needs a model with an end-of-sequence token; this one has none", param="grammar"
            )
        try:
            compiled = self._compile(grammar)
        except ModuleNotFoundError as error:
            raise RequestError(f"grammar needs the package {error.name}: pip install it", param="grammar") from error
        except RuntimeError as error:
            raise RequestError(f"bad {grammar.kind.value} grammar: {_reason(error)}", param="grammar") from error
        return CompiledGrammar(compiled, self._end_ids, self._vocab_size)

    def _compile(self, grammar: Grammar) -> xgrammar.CompiledGrammar:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                check_schema(grammar.source)
                return self._json.compile_json_schema(grammar.source)
            case GrammarKind.JSON_OBJECT:
                return self._json.compile_json_schema('{"type": "object"}', strict_mode=False)
            case GrammarKind.REGEX:
                return self._text.compile_regex(grammar.source)
            case GrammarKind.CHOICE:
                return self._text.compile_grammar(_choice_grammar(grammar.source))
            case GrammarKind.EBNF:
                return self._text.compile_grammar(grammar.source)

    # The vocabulary is prepared when the first grammar comes, not at start: it takes a moment and most never need it.
    @cached_property
    def _text(self) -> xgrammar.GrammarCompiler:
        return self._compiler(_vocabulary(self._tokenizer, self._vocab_size))

    @cached_property
    def _json(self) -> xgrammar.GrammarCompiler:
        # The library lets raw control characters into strings of limited length, which JSON forbids. Without tokens
        # that contain any it cannot; only line ends, which it treats rightly, and no more are needed for layout.
        pieces = _vocabulary(self._tokenizer, self._vocab_size)
        for token, text in enumerate(self._info(pieces).decoded_vocab):
            if _CONTROL.search(text):
                pieces[token] = ""
        return self._compiler(pieces)

    def _compiler(self, pieces: list[str]) -> xgrammar.GrammarCompiler:
        import xgrammar

        return xgrammar.GrammarCompiler(
            self._info(pieces), max_threads=self._max_threads, cache_limit_bytes=_CACHE_BYTES
        )

    def _info(self, pieces: list[str]) -> xgrammar.TokenizerInfo:
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        ends = sorted(self._end_ids)
        detected = xgrammar.TokenizerInfo.from_huggingface(
            PreTrainedTokenizerFast(tokenizer_object=self._tokenizer),
            vocab_size=self._vocab_size,
            stop_token_ids=ends,
        )
        return xgrammar.TokenizerInfo(
            pieces,
            vocab_type=detected.vocab_type,
            vocab_size=self._vocab_size,
            stop_token_ids=ends,
            add_prefix_space=detected.add_prefix_space,
        )


def fill_mask(states: Sequence[GrammarState | None], vocab_size: int) -> TokenMask | None:
    """What the grammars of a step's rows allow; None when no row has one.

    Args:
        states: one per row of the step.
    """
    rows = tuple(i for i, state in enumerate(states) if state is not None)
    if not rows:
        return None
    bits = torch.full((len(rows), -(-vocab_size // 32)), -1, dtype=torch.int32)
    for place, row in enumerate(rows):
        state = states[row]
        assert state is not None
        state.fill(bits, place)
    return TokenMask(rows=rows, bits=bits)


def _choice_grammar(source: str) -> str:
    """EBNF for a JSON array of strings. JSON's string escapes are EBNF's too."""
    try:
        choices = json.loads(source)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("choice must be a JSON array of at least one string", param="grammar")
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _vocabulary(tokenizer: FastTokenizer, vocab_size: int) -> list[str]:
    """Piece of every id of the model, as the tokenizer spells it; empty pieces are never allowed."""
    pieces = [""] * vocab_size
    for piece, token in tokenizer.get_vocab(with_added_tokens=True).items():
        if token < vocab_size:
            pieces[token] = piece
    # Control tokens are not text: an output that spells one would be shown without it.
    for token, added in tokenizer.get_added_tokens_decoder().items():
        if added.special and token < vocab_size:
            pieces[token] = ""
    return pieces


def _reason(error: RuntimeError) -> str:
    """xgrammar's message without its source position, on one line."""
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error))
    text = re.sub(r"^Check failed: .*? is false: ", "", text)
    return " ".join(text.split())[:300]


def _bit(place: int) -> int:
    """1 << place as a signed 32-bit integer."""
    return (1 << place) - (1 << 32 if place == 31 else 0)
