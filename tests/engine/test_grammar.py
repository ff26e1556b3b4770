"""Constrained decoding: random logits under a grammar always spell something that the grammar describes."""

import json
import re
from collections.abc import Callable

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from baton.core.errors import RequestError
from baton.core.request import Request
from baton.core.sampling import Grammar, GrammarKind, SamplingParams
from baton.core.step import SampleRow
from baton.engine.grammar import GrammarCompiler, GrammarState, fill_mask
from baton.layers.sampler import Sampler

pytestmark = pytest.mark.torch

MERGES = [("t", "r"), ("tr", "u"), ("tru", "e"), ('"', ":"), ('"', ","), ("1", "2"), ("a", "b"), ("ab", "c")]
MODEL_VOCAB = 300  # more than the tokenizer has
MAX_TOKENS = 400
SEEDS = range(50)


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE: 256 bytes, a few merges that cross token borders of JSON, two control tokens, one plain added."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|start|>", special=True)])
    tokenizer.add_tokens([AddedToken("<note>", special=False)])
    return tokenizer


TOKENIZER = make_tokenizer()
EOS = TOKENIZER.token_to_id("<|end|>")
START = TOKENIZER.token_to_id("<|start|>")
NOTE = TOKENIZER.token_to_id("<note>")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENIZER, eos_token_ids=[EOS], vocab_size=MODEL_VOCAB)


def allowed(state: GrammarState) -> set[int]:
    mask = fill_mask([state], MODEL_VOCAB)
    assert mask is not None
    words = mask.bits[0].tolist()
    return {token for token in range(MODEL_VOCAB) if words[token // 32] >> (token % 32) & 1}


def generate(compiler: GrammarCompiler, grammar: Grammar) -> list[str]:
    """Texts of one sequence a seed, all in one batch, under random logits that lean towards closing."""
    sampler = Sampler(vocab_size=MODEL_VOCAB, max_num_seqs=len(SEEDS), device=torch.device("cpu"))
    states: list[GrammarState] = []
    for seed in SEEDS:
        params = SamplingParams(seed=seed, max_tokens=MAX_TOKENS, grammar=grammar)
        sampler.admit(seed, Request(request_id=str(seed), prompt_token_ids=(1,), params=params), 0)
        states.append(compiler.compile(grammar).start())
    lean = torch.zeros(MODEL_VOCAB)
    for text, bonus in (('"', 4.0), ("}", 4.0), ("]", 4.0), (" ", -3.0), ("\n", -3.0), ("\t", -3.0), ("\r", -3.0)):
        lean[TOKENIZER.encode(text).ids] = bonus
    lean[EOS] = 3.0
    outputs: list[list[int]] = [[] for _ in SEEDS]
    table = torch.zeros(len(SEEDS), MAX_TOKENS + 1, dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    for place in range(MAX_TOKENS):
        live = [seed for seed in SEEDS if not states[seed].ended]
        if not live:
            break
        rows = [SampleRow(chunk=i, slot=s, position=1 + place, num_output_tokens=place) for i, s in enumerate(live)]
        logits = torch.randn(len(live), MODEL_VOCAB, generator=generator) * 2 + lean
        mask = fill_mask([states[seed] for seed in live], MODEL_VOCAB)
        for seed, token in zip(live, sampler.sample(logits, rows, table, mask).token_ids.tolist(), strict=True):
            assert states[seed].accept(token)
            outputs[seed].append(token)
    assert all(state.ended for state in states), "a sequence did not end by itself"
    return [TOKENIZER.decode(output[:-1], skip_special_tokens=True) for output in outputs]


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "abc", "\u00e9"]}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


def obeys_schema(text: str) -> bool:
    value = json.loads(text)
    return (
        isinstance(value, dict)
        and {"name", "age", "ok"} <= set(value) <= {"name", "age", "tags", "ok"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["age"]) is int
        and 0 <= value["age"] <= 120
        and isinstance(value["ok"], bool)
        and len(value.get("tags", [])) <= 3
        and all(tag in ("a", "abc", "\u00e9") for tag in value.get("tags", []))
    )


REGEX = r"(ab|true)+-[0-9]{2,4}(\.[a-c]+)?"
CHOICES = ["yes", "no", "no way", 'a "quoted" \\ one', "\u00e9t\u00e9 \U0001f600", "two\nlines\tand tab", "<|start|>"]
EBNF = 'root ::= "(" list ")"\nlist ::= item | item "," list\nitem ::= [a-z] | "(" item ")"\n'

CASES: dict[str, tuple[Grammar, Callable[[str], object]]] = {
    "schema": (Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA)), obeys_schema),
    "object": (Grammar(kind=GrammarKind.JSON_OBJECT), lambda text: isinstance(json.loads(text), dict)),
    "regex": (Grammar(kind=GrammarKind.REGEX, source=REGEX), lambda text: re.fullmatch(REGEX, text)),
    "choice": (Grammar(kind=GrammarKind.CHOICE, source=json.dumps(CHOICES)), lambda text: text in CHOICES),
    "ebnf": (
        Grammar(kind=GrammarKind.EBNF, source=EBNF),
        lambda text: re.fullmatch(r"\((\(*[a-z]\)*)(,\(*[a-z]\)*)*\)", text) and text.count("(") == text.count(")"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_output_is_described_by_the_grammar(case: str, compiler: GrammarCompiler) -> None:
    grammar, matches = CASES[case]
    texts = generate(compiler, grammar)
    assert [text for text in texts if not matches(text)] == []
    assert len(set(texts)) > 3  # it is a choice, not one canned answer


def test_only_the_end_follows_a_complete_grammar(compiler: GrammarCompiler) -> None:
    state = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="ab")).start()
    assert allowed(state) == {TOKENIZER.token_to_id("a"), TOKENIZER.token_to_id("ab")}
    assert state.accept(TOKENIZER.token_to_id("ab"))
    assert allowed(state) == {EOS}
    assert not state.ended
    assert state.accept(EOS)
    assert state.ended
    assert allowed(state) == {EOS}  # when the end is ignored, it is repeated
    assert state.accept(EOS)
    assert not state.accept(TOKENIZER.token_to_id("a"))


def test_control_tokens_and_ids_beyond_the_tokenizer_are_never_allowed(compiler: GrammarCompiler) -> None:
    start = compiler.compile(Grammar(kind=GrammarKind.REGEX, source=".*")).start()
    tokens = allowed(start)
    assert START not in tokens
    assert max(tokens) < TOKENIZER.get_vocab_size()
    assert {EOS, NOTE, TOKENIZER.token_to_id("true")} <= tokens


def test_a_refused_token_leaves_the_state(compiler: GrammarCompiler) -> None:
    state = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="ab")).start()
    assert not state.accept(TOKENIZER.token_to_id("b"))
    assert not state.accept(START)
    assert not state.accept(EOS)
    assert allowed(state) == {TOKENIZER.token_to_id("a"), TOKENIZER.token_to_id("ab")}


def test_outputs_are_replayed_after_preemption(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="a[0-9]b"))
    outputs = [TOKENIZER.token_to_id("a"), TOKENIZER.token_to_id("1")]
    first = compiled.start()
    for token in outputs:
        assert first.accept(token)
    assert allowed(compiled.start(outputs)) == allowed(first) == {TOKENIZER.token_to_id("b")}
    with pytest.raises(RequestError, match="breaks the grammar"):
        compiled.start(outputs[1:])


def test_a_grammar_that_the_vocabulary_cannot_spell_gets_stuck_and_says_so(compiler: GrammarCompiler) -> None:
    # JSON strings cannot hold a raw tab, and this pattern allows nothing else.
    schema = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"type": "string", "pattern": "^a\t$"}))
    state = compiler.compile(schema).start([TOKENIZER.token_to_id('"')])
    assert allowed(state) == {TOKENIZER.token_to_id("a")}
    assert not state.stuck
    assert state.accept(TOKENIZER.token_to_id("a"))
    assert allowed(state) == {EOS}
    assert state.stuck
    assert not state.ended
    assert not state.accept(TOKENIZER.token_to_id("a"))
    assert state.accept(EOS)


def test_a_grammar_that_costs_more_with_each_token_is_given_up(compiler: GrammarCompiler) -> None:
    """The ways to read a run of n letters grow as a power of n: 25 letters would take seconds a mask."""
    state = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="((a{0,100}){0,100}){0,100}")).start()
    for _ in range(25):
        letters = allowed(state)
        if state.stuck:
            break
        assert state.accept(TOKENIZER.token_to_id("a"))
    assert state.stuck and letters == {EOS}
    assert state.accept(EOS)


def test_the_mask_names_the_rows_with_a_grammar(compiler: GrammarCompiler) -> None:
    state = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="1")).start()
    assert fill_mask([None, None], MODEL_VOCAB) is None
    mask = fill_mask([None, state, None, state], MODEL_VOCAB)
    assert mask is not None
    assert mask.rows == (1, 3)
    assert mask.bits.shape == (2, 10)


def test_a_transformers_tokenizer_serves_as_well() -> None:
    wrapped = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER)
    compiler = GrammarCompiler(wrapped, eos_token_ids=[EOS], vocab_size=MODEL_VOCAB)
    state = compiler.compile(Grammar(kind=GrammarKind.CHOICE, source='[" 12"]')).start()
    assert state.accept(TOKENIZER.encode(" ").ids[0])
    assert allowed(state) == {TOKENIZER.token_to_id("1"), TOKENIZER.token_to_id("12")}


def test_several_end_tokens_all_end() -> None:
    compiler = GrammarCompiler(TOKENIZER, eos_token_ids=[EOS, START, 999], vocab_size=MODEL_VOCAB)
    state = compiler.compile(Grammar(kind=GrammarKind.REGEX, source="1")).start()
    assert state.accept(TOKENIZER.token_to_id("1"))
    assert allowed(state) == {EOS, START}


BAD = [
    (GrammarKind.JSON_SCHEMA, "{bad", "not valid JSON"),
    (GrammarKind.JSON_SCHEMA, '{"type": "foo"}', "foo"),
    (GrammarKind.JSON_SCHEMA, "[1]", "object or bool"),
    (GrammarKind.JSON_SCHEMA, "false", "cannot accept any"),
    (GrammarKind.REGEX, "(ab", "parenthesis"),
    (GrammarKind.REGEX, r"(a)\1", "Backreference"),
    (GrammarKind.EBNF, 'root ::= "a', "line 1"),
    (GrammarKind.EBNF, 'other ::= "a"', "root"),
    (GrammarKind.CHOICE, "[]", "at least one"),
    (GrammarKind.CHOICE, '["a", 1]', "array of at least one string"),
    (GrammarKind.CHOICE, "yes", "array of at least one string"),
]


@pytest.mark.parametrize(("kind", "source", "hint"), BAD)
def test_a_bad_grammar_is_refused_in_one_line(
    kind: GrammarKind, source: str, hint: str, compiler: GrammarCompiler
) -> None:
    with pytest.raises(RequestError, match=hint) as caught:
        compiler.compile(Grammar(kind=kind, source=source))
    assert caught.value.param == "grammar"
    assert "\n" not in str(caught.value)
    assert "/" not in str(caught.value)  # no source positions of the library


def test_a_model_without_an_end_cannot_be_constrained() -> None:
    compiler = GrammarCompiler(TOKENIZER, eos_token_ids=[], vocab_size=MODEL_VOCAB)
    with pytest.raises(RequestError, match="end-of-sequence"):
        compiler.compile(Grammar(kind=GrammarKind.REGEX, source="a"))
