"""Streams of decoders whose tokens have no text of their own: the law of test_stream, and bounded work."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models
from tokenizers import Tokenizer as Backend

from baton.core.errors import ModelError
from baton.text.pieces import decoder_steps
from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer, load_tokenizer
from baton.text.window import WindowDecoder, lookahead

pytestmark = pytest.mark.slow

WORDS = ["a", "b", "ab", "don", "n't", ".", "!", "'", "'s", "do", "not", " do", "é", "🦜", "\ufffd", "", " ", "  "]
WORDPIECE = [*WORDS, "##ing", "##s", "##", "##.", "s##"]
MARKED = [*WORDS, "\u2581", "\u2581the", "the\u2581", "\u2581\u2581", "a\u2581b"]
SUFFIXED = [*WORDS, "the</w>", "ing</w>", ".</w>", "</w>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in (0x41, 0x20, 0xC3, 0xA9, 0xE4, 0xB8, 0x96, 0xF0, 0x9F, 0xFF)]
BYTE_LEVEL = ["a", "\u0120", "\u0120b", "\u00c3", "\u00a9", "\u00f0", "\u0141", "\u00a6", "\u013e", "\u00e9\u0120"]
FALLBACK, FUSE = decoders.ByteFallback(), decoders.Fuse()
UNDERLINE = decoders.Replace("\u2581", " ")

CASES: dict[str, tuple[decoders.Decoder | None, list[str]]] = {
    "none": (None, WORDS),
    "WordPiece": (decoders.WordPiece(prefix="##", cleanup=False), WORDPIECE),
    "WordPiece with clean-up": (decoders.WordPiece(prefix="##", cleanup=True), WORDPIECE),
    "Metaspace always": (decoders.Metaspace(prepend_scheme="always"), MARKED),
    "Metaspace first": (decoders.Metaspace(prepend_scheme="first"), MARKED),
    "Metaspace never": (decoders.Metaspace(prepend_scheme="never"), MARKED),
    "BPEDecoder": (decoders.BPEDecoder(suffix="</w>"), SUFFIXED),
    "CTC": (decoders.CTC(pad_token="<pad>", word_delimiter_token="|", cleanup=True), [*WORDS, "<pad>", "|"]),
    "Fuse before Replace": (decoders.Sequence([FUSE, UNDERLINE]), MARKED),
    "Replace of three characters": (decoders.Sequence([FUSE, decoders.Replace("b.d", "*")]), [*WORDS, "d", ".d", "b."]),
    "Strip before Fuse": (decoders.Sequence([UNDERLINE, decoders.Strip(" ", 1, 0), FUSE]), MARKED),
    "Strip behind a late Replace": (decoders.Sequence([FUSE, UNDERLINE, decoders.Strip(" ", 2, 0)]), MARKED),
    "Regex": (decoders.Sequence([decoders.Replace(Regex("[\u2581b]"), " "), FUSE]), MARKED),
    "ByteFallback before Metaspace": (
        decoders.Sequence([FALLBACK, decoders.Metaspace(prepend_scheme="always")]),
        [*MARKED, *BYTE_TOKENS],
    ),
    "ByteFallback before Replace": (decoders.Sequence([FALLBACK, UNDERLINE, FUSE]), [*MARKED, *BYTE_TOKENS]),
    "ByteLevel and Strip": (decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)]), BYTE_LEVEL),
    "nested": (decoders.Sequence([decoders.Sequence([FUSE]), decoders.Sequence([UNDERLINE])]), MARKED),
}


def make(decoder: decoders.Decoder | None, words: list[str]) -> Tokenizer:
    """Token i is words[i]; behind them one special token."""
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.add_special_tokens(["<|special|>"])
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


@pytest.fixture(scope="module", params=CASES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make(*CASES[request.param])


def stream(tokenizer: Tokenizer, ids: Sequence[int], skip: bool = True) -> list[str]:
    """One piece a token, and what comes at the end."""
    text_stream = TextStream(tokenizer, skip_special_tokens=skip)
    return [*[text_stream.push([i]) for i in ids], text_stream.finish()]


def test_cases_have_no_texts_of_single_tokens(tokenizer: Tokenizer) -> None:
    """Else the cases would test the other decoders of stream.py."""
    assert tokenizer.pieces is None


@settings(max_examples=60, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_random_ids_join_to_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Any ids, unknown ones too; long enough that the window is cut several times."""
    size = data.draw(st.sampled_from([5, 40, 150]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=size))
    assert "".join(stream(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_runs_join_to_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """Runs of few tokens: spaces, marks, tokens without text, bytes, repetitions that CTC drops."""
    few = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=1, max_size=5))
    length = st.sampled_from([1, 1, 2, 9, 30, 70])
    runs = data.draw(st.lists(st.tuples(st.sampled_from(few), length), max_size=12))
    ids = [i for token_id, count in runs for i in [token_id] * count]
    assert "".join(stream(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pieces_before_the_end_are_right(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """The comparison at the end has nothing to mend but what was held back: shown text is a beginning of the whole."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), min_size=30, max_size=150))
    whole, shown = tokenizer.decode(ids), ""
    for piece in stream(tokenizer, ids)[:-1]:
        shown += piece
        assert whole.startswith(shown)


@pytest.mark.parametrize(
    ("case", "tokens", "expected"),
    [
        ("none", ["a", "b", ".", "a"], ["a", " b", " .", " a", ""]),
        ("WordPiece", ["do", "##ing", "a", "."], ["do", "ing", " a", " .", ""]),
        ("WordPiece with clean-up", ["do", "n't", "."], ["do", "n't", ".", ""]),
        ("Metaspace always", ["\u2581the", "\u2581the", "a"], ["the", " the", "a", ""]),
        ("Metaspace never", ["\u2581the", "\u2581the"], [" the", " the", ""]),
        ("BPEDecoder", ["do", "ing</w>", "the</w>", ".</w>"], ["do", "ing", " the", " .", ""]),
        ("Fuse before Replace", ["a", "\u2581the"], ["a", " the", ""]),
        ("Strip behind a late Replace", [" ", "\u2581\u2581", "a", " ", "b"], ["", " ", "a", " ", "b", ""]),
    ],
)
def test_text_comes_with_its_token(case: str, tokens: list[str], expected: list[str]) -> None:
    """Nothing is held back without need. By the definitions of the decoders, worked out by hand."""
    tokenizer = make(*CASES[case])
    assert stream(tokenizer, [tokenizer.backend.token_to_id(token) for token in tokens]) == expected


def test_unfinished_character_is_held_back() -> None:
    """The four bytes of an emoji in three tokens, then a byte that never becomes a character."""
    tokenizer = make(*CASES["ByteLevel and Strip"])
    ids = [tokenizer.backend.token_to_id(token) for token in ("\u00f0", "\u0141", "\u00a6", "\u013e", "\u00f0", "a")]
    parrot = bytes([0xF0, 0x9F, 0xA6, 0x9C]).decode()
    assert stream(tokenizer, ids) == ["", "", "", parrot, "", "\ufffda", ""]


def test_invalid_bytes_do_not_hold_back_for_ever() -> None:
    """All but the newest of a run of bytes that are no characters are shown."""
    tokenizer = make(*CASES["ByteLevel and Strip"])
    invalid = tokenizer.backend.token_to_id("\u00f0")
    text_stream = TextStream(tokenizer)
    assert text_stream.push([invalid] * 100) == "\ufffd" * 99
    assert text_stream.finish() == "\ufffd"


def test_tokens_without_text_do_not_lose_what_is_held_back() -> None:
    """The "b." held back (".d" might follow) is not among the newest tokens when the window is cut, again and again."""
    tokenizer = make(*CASES["Replace of three characters"])
    a, b, dot, empty, d = (tokenizer.backend.token_to_id(token) for token in ("a", "b", ".", "", "d"))
    gap = [empty] * 100
    assert "".join(stream(tokenizer, [a, a, a, b, *gap, dot, *gap, d, *gap, a])) == "aaa*a"


def test_stripped_tokens_are_remembered() -> None:
    """Two spaces are stripped from the front, however many tokens without text come between; the third is shown."""
    tokenizer = make(*CASES["Strip behind a late Replace"])
    mark, empty, a = (tokenizer.backend.token_to_id(token) for token in ("\u2581", "", "a"))
    gap = [empty] * 100
    assert "".join(stream(tokenizer, [mark, *gap, mark, *gap, mark, a])) == " a"


def test_shown_text_stays_when_the_decoder_rewrites_it() -> None:
    """A match longer than any lookahead: what was shown is not taken back, and what follows it is not lost."""
    tokenizer = make(decoders.Sequence([FUSE, decoders.Replace(Regex("<.*>"), "!")]), ["<", "x", ">", "y"])
    ids = [0, *[1] * 40, 2, 3, 3]
    assert tokenizer.decode(ids) == "!yy"
    joined = "".join(stream(tokenizer, ids))
    assert joined.startswith("<" + "x" * 20)
    assert joined.endswith("yy")


def test_the_end_is_that_of_the_whole_text() -> None:
    """What was held back is shown as the whole text has it, here by a rule that looks further than any window."""
    far = decoders.Replace(Regex("(?<=b.{90})c"), "C")
    tokenizer = make(decoders.Sequence([FUSE, far]), ["a", "b", "c"])
    ids = [1, *[0] * 90, 2, 0]
    assert "".join(stream(tokenizer, ids)) == "b" + "a" * 90 + "Ca"


class Recorder:
    """A backend that counts the tokens it decodes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.decoder = backend.decoder
        self.num_decoded = 0

    def id_to_token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        self.num_decoded += len(ids)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)


def test_strip_at_the_end_is_refused() -> None:
    """decode of the library panics for an empty text, which nothing here could catch."""
    with pytest.raises(ModelError, match=r"Strip.*set its stop to 0"):
        make(decoders.Sequence([FUSE, decoders.Strip(" ", 0, 1)]), WORDS)


@pytest.mark.parametrize("length", [200, 2000])
def test_work_per_token_is_constant(tokenizer: Tokenizer, length: int) -> None:
    """Whatever the length, also for runs of tokens without text: windows have some 50 tokens at most, decoded up to
    three times where cutting fails; runs of byte tokens are first decoded when they end."""
    for run in (1, 60, length):
        recorder = Recorder(tokenizer.backend)
        decoder = WindowDecoder(recorder)
        ids = [i // run % tokenizer.vocab_size for i in range(length)]
        for token_id in ids:
            decoder.add(token_id)
        assert recorder.num_decoded <= 120 * length


def test_work_is_bounded_when_no_cut_is_right() -> None:
    """A decoder that shows any long text as one word, so that no part of a window has its text."""
    tokenizer = make(decoders.Sequence([FUSE, decoders.Replace(Regex("^.{40,}$"), "long")]), ["a"])
    recorder = Recorder(tokenizer.backend)
    decoder = WindowDecoder(recorder)
    for _ in range(5000):
        decoder.add(0)
    assert recorder.num_decoded <= 5000 * 250


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([decoders.Replace("abc", "d"), decoders.Fuse()], 0),
        ([decoders.Fuse(), decoders.Replace("abc", "d"), decoders.Replace("xy", "")], 3),
        ([decoders.ByteLevel(), decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)], 0),
        ([decoders.Fuse(), decoders.WordPiece()], 16),
    ],
)
def test_lookahead(steps: list[decoders.Decoder], expected: int) -> None:
    """Patterns behind the fusing step count, one character less than their length."""
    backend = Backend(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.Sequence(steps)
    assert lookahead(decoder_steps(backend) or []) == expected


def test_word_level_folder(tmp_path: Path) -> None:
    """A folder as for models with dummy weights: token i is the word "i", no decoder; loads and streams."""
    backend = Backend(models.WordLevel({str(i): i for i in range(1000)}, unk_token="0"))
    backend.save(str(tmp_path / "tokenizer.json"))
    settings_ = {"bos_token": "0", "eos_token": "1", "unk_token": "0"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_))
    tokenizer = load_tokenizer(tmp_path)
    ids = [0, 17, 5, 999, 1]
    assert stream(tokenizer, ids) == ["", "17", " 5", " 999", "", ""]
    assert "".join(stream(tokenizer, ids, skip=False)) == "0 17 5 999 1"
