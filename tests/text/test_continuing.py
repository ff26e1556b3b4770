"""The law of streams behind a prompt: text == decode(prompt + output)[len(decode(prompt)):], for every decoder."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from baton.core.request import FinishReason, Request, SequenceDelta
from baton.core.sampling import SamplingParams
from baton.text.outputs import OutputCollector
from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer
from tests.text.test_window import CASES, make

pytestmark = pytest.mark.slow

FAMILIES = ["byte_level", "sentencepiece"]
LONG = 300
"""Tokens: longer than both ends of a prompt that a stream reads."""


@pytest.fixture(scope="module", params=[*FAMILIES, *CASES])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param) if request.param in FAMILIES else make(*CASES[request.param])


def stream(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> str:
    """Token by token."""
    text_stream = TextStream(tokenizer, skip, prompt)
    return "".join([*[text_stream.push([i]) for i in output], text_stream.finish()])


def check(tokenizer: Tokenizer, prompt: list[int], output: list[int], skip: bool = True) -> None:
    """The law, where it says something."""
    before, whole = tokenizer.decode(prompt, skip), tokenizer.decode(prompt + output, skip)
    if whole.startswith(before):
        assert stream(tokenizer, prompt, output, skip) == whole[len(before) :]


@settings(max_examples=80, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_random_ids_continue(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Any ids on both sides, in runs: special tokens, broken characters, tokens without text, unknown ids."""
    token = st.integers(0, tokenizer.vocab_size + 1)
    few = data.draw(st.lists(token, min_size=1, max_size=5))
    runs = st.lists(st.tuples(st.one_of(st.sampled_from(few), token), st.sampled_from([1, 1, 1, 2, 30])), max_size=6)
    prompt, output = ([i for i, count in data.draw(runs) for _ in range(count)] for _ in range(2))
    check(tokenizer, prompt, output, skip)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_long_prompts_continue(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Only the ends of the prompt are read, with the same result. No broken characters: see the next test."""
    text = data.draw(st.lists(st.sampled_from(["the quick", " hello", "world.", "  ", "é世🙂"]), max_size=4))
    ids = tokenizer.encode("".join(text) or "the", add_special_tokens=False) or [0]
    prompt = (ids * LONG)[: LONG // len(ids) * len(ids)]
    check(tokenizer, prompt, data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=30)))


@given(data=st.data())
def test_bytes_continue(sentencepiece: Tokenizer, data: st.DataObject) -> None:
    """Dense in bytes of multi-byte characters and in spaces, which are stripped as bytes too."""
    byte = st.sampled_from([0x20, 0xC3, 0xE4, 0xF0, 0x9F, 0x98, 0x80, 0xB8, 0x96, 0xEF, 0xBF, 0xBD, 0x41])
    token = st.one_of(byte.map(lambda value: 3 + value), byte.map(lambda value: 3 + value), st.integers(0, 300))
    prompt, output = (data.draw(st.lists(token, max_size=9)) for _ in range(2))
    check(sentencepiece, prompt, output)


@given(data=st.data())
def test_utf8_continues(byte_level: Tokenizer, data: st.DataObject) -> None:
    """The same for bytes of a byte-level vocabulary."""
    byte = [0x20, 0xC3, 0xE0, 0xE4, 0xED, 0xA0, 0xF0, 0xF4, 0x9F, 0x98, 0x80, 0xB8, 0x96, 0xEF, 0xBF, 0xBD, 0x41]
    token = st.sampled_from([raw(byte_level, value) for value in byte])
    prompt, output = (data.draw(st.lists(token, max_size=6)) for _ in range(2))
    check(byte_level, prompt, output)


def raw(tokenizer: Tokenizer, byte: int) -> int:
    """The token of one raw byte."""
    found = tokenizer.backend.token_to_id(f"<0x{byte:02X}>")
    return found or next(i for i in range(tokenizer.vocab_size) if tokenizer.pieces.piece(i) == bytes([byte]))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ("世\U0001f642".encode()[:5], "\U0001f642".encode()[2:] + b"!", "\U0001f642!"),
        ("世\U0001f642".encode(), "世".encode(), "世"),
        ("世".encode() * LONG, "世".encode() + b"!", "世!"),
        ("世".encode() * LONG + b"\xe4", b"\xb8\x96!", "世!"),
    ],
)
def test_characters_at_the_border(
    family: str, prompt: bytes, output: bytes, expected: str, request: pytest.FixtureRequest
) -> None:
    """A character that the prompt begins and the output completes is the output's, whole; others are whose they are."""
    tokenizer = request.getfixturevalue(family)
    ids = [[raw(tokenizer, byte) for byte in side] for side in (prompt, output)]
    assert stream(tokenizer, *ids) == expected


def test_first_space(sentencepiece: Tokenizer) -> None:
    """Kept behind text, also behind an end of turn such as [/INST]; stripped where the prompt is special tokens only.
    So does the library's own stream that was given the prompt, which is what vLLM shows."""
    bos, eos = 1, 2
    the, hello = (sentencepiece.backend.token_to_id(token) for token in ("\u2581the", "hello"))
    cases = {(): "the", (bos,): "the", (bos, the): " the", (hello, eos, bos): " the", (hello,) * LONG: " the"}
    for prompt, expected in cases.items():
        assert stream(sentencepiece, list(prompt), [the, hello]) == expected + "hello"
        library = DecodeStream(ids=list(prompt), skip_special_tokens=True)
        assert library.step(sentencepiece.backend, the) == expected


def test_collector_continues_its_prompt(sentencepiece: Tokenizer) -> None:
    """Each of n texts; the space is there for stop strings too."""
    the, hello = (sentencepiece.backend.token_to_id(token) for token in ("\u2581the", "\u2581hello"))
    params = SamplingParams(n=2, stop=(" hello",), seed=1)
    request = Request(request_id="r", prompt_token_ids=(1, hello), params=params)
    collector = OutputCollector(request, prompt=None, tokenizer=sentencepiece, finish=lambda *_: None)
    for index, tokens in enumerate(((the, the), (hello,))):
        delta = SequenceDelta(request_id="r", index=index, token_ids=tokens, finish_reason=FinishReason.LENGTH)
        collector.add(delta)
    assert [output.text for output in collector.output.outputs] == [" the the", ""]
    assert [output.finish_reason for output in collector.output.outputs] == ["length", "stop"]


class Counting:
    """A prompt that counts how many of its tokens are read."""

    def __init__(self, size: int) -> None:
        self._ids = range(3, 3 + size)
        self.num_read = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: slice) -> list[int]:
        found = [i % 250 for i in self._ids[place]]
        self.num_read += len(found)
        return found


def test_work_at_the_start_is_bounded(tokenizer: Tokenizer) -> None:
    prompt = Counting(10**6)
    TextStream(tokenizer, True, prompt)  # type: ignore[arg-type]
    assert 0 < prompt.num_read <= 128
