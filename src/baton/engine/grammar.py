"""Constrained decoding through xgrammar: compiled grammars, the state of one sequence, and the step's mask.

A mask needs every token before it, so a sequence with a grammar cannot be planned ahead of its sampled tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

import torch
import xgrammar
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from baton.core.errors import RequestError
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.json_schema import check_schema
from baton.layers.constraints import TokenMask

_CACHE_BYTES = 256 << 20


class GrammarState:
    """Where one sequence stands in its grammar."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._end_ids = end_ids

    @property
    def ended(self) -> bool:
        """Whether an end-of-sequence token was accepted; only more of them may follow."""
        return bool(self._matcher.is_terminated())

    def accept(self, token_id: int) -> bool:
        """Move past a sampled token. False, and no move, if the grammar does not allow it."""
        if self.ended:
            return token_id in self._end_ids
        return bool(self._matcher.accept_token(token_id))

    def fill(self, bits: Tensor, row: int) -> None:
        """Write the tokens allowed next into row `row` of bits int32 [G, ceil(V / 32)] (host memory)."""
        if not self.ended:
            self._matcher.fill_next_token_bitmask(bits, row)
            return
        bits[row].fill_(0)
        for token in self._end_ids:
            bits[row, token // 32] |= _bit(token % 32)


class CompiledGrammar:
    """A grammar compiled for one tokenizer. Immutable; shared by sequences."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, end_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._end_ids = end_ids

    def start(self, output_token_ids: Iterable[int] = ()) -> GrammarState:
        """State of a sequence that has produced these tokens (empty for a new one).

        Raises:
            RequestError: the grammar does not allow them.
        """
        state = GrammarState(xgrammar.GrammarMatcher(self._compiled), self._end_ids)
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
        self._end_ids = frozenset(token for token in eos_token_ids if 0 <= token < vocab_size)
        self._compiler: xgrammar.GrammarCompiler | None = None
        if self._end_ids:
            info = _tokenizer_info(tokenizer, sorted(self._end_ids), vocab_size)
            self._compiler = xgrammar.GrammarCompiler(info, max_threads=max_threads, cache_limit_bytes=_CACHE_BYTES)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, or take from the cache. Large grammars can take seconds: call it before admission.

        Raises:
            RequestError: the grammar is malformed, or asks for what cannot be enforced; param is "grammar".
        """
        if self._compiler is None:
            raise RequestError(
                "grammar needs a model with an end-of-sequence token; this one has none", param="grammar"
            )
        try:
            compiled = _compile(self._compiler, grammar)
        except RuntimeError as error:
            raise RequestError(f"bad {grammar.kind.value} grammar: {_reason(error)}", param="grammar") from error
        return CompiledGrammar(compiled, self._end_ids)


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


def _compile(compiler: xgrammar.GrammarCompiler, grammar: Grammar) -> xgrammar.CompiledGrammar:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            check_schema(grammar.source)
            return compiler.compile_json_schema(grammar.source)
        case GrammarKind.JSON_OBJECT:
            return compiler.compile_json_schema('{"type": "object"}', strict_mode=False)
        case GrammarKind.REGEX:
            return compiler.compile_regex(grammar.source)
        case GrammarKind.CHOICE:
            return compiler.compile_grammar(_choice_grammar(grammar.source))
        case GrammarKind.EBNF:
            return compiler.compile_grammar(grammar.source)


def _choice_grammar(source: str) -> str:
    """EBNF for a JSON array of strings. JSON's string escapes are EBNF's too."""
    try:
        choices = json.loads(source)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestError("choice must be a JSON array of at least one string", param="grammar")
    return "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _tokenizer_info(
    tokenizer: FastTokenizer | PreTrainedTokenizerFast, end_ids: list[int], vocab_size: int
) -> xgrammar.TokenizerInfo:
    backend = tokenizer if isinstance(tokenizer, FastTokenizer) else tokenizer.backend_tokenizer
    detected = xgrammar.TokenizerInfo.from_huggingface(
        PreTrainedTokenizerFast(tokenizer_object=backend), vocab_size=vocab_size, stop_token_ids=end_ids
    )
    pieces = [""] * vocab_size
    for piece, token in backend.get_vocab(with_added_tokens=True).items():
        if token < vocab_size:
            pieces[token] = piece
    # Control tokens are not text: an output that spells one would be shown without it. Empty pieces are never allowed.
    for token, added in backend.get_added_tokens_decoder().items():
        if added.special and token < vocab_size:
            pieces[token] = ""
    return xgrammar.TokenizerInfo(
        pieces,
        vocab_type=detected.vocab_type,
        vocab_size=vocab_size,
        stop_token_ids=end_ids,
        add_prefix_space=detected.add_prefix_space,
    )


def _reason(error: RuntimeError) -> str:
    """xgrammar's message without its source position, on one line."""
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error))
    text = re.sub(r"^Check failed: .*? is false: ", "", text)
    return " ".join(text.split())[:300]


def _bit(place: int) -> int:
    """1 << place as a signed 32-bit integer."""
    return (1 << place) - (1 << 32 if place == 31 else 0)
