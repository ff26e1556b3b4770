# ruff: noqa: RUF001 - Greek and mathematical letters are meant.
"""The real SmolLM2 tokenizer from its GGUF file against transformers' own reading of the same file."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from baton.text.stream import TextStream
from baton.text.tokenizer import Tokenizer, load_tokenizer

MORE_TEXTS = [
    "What is the capital of France?",
    'for (int i = 0; i < 10; ++i) { printf("%d\\n", i); }',
    "SELECT name, COUNT(*) FROM users WHERE age >= 21 GROUP BY name;",
    "<html><body class='x'>Hello &amp; welcome</body></html>",
    '{"key": [1, 2.5, -3e10, null, true], "nested": {"a": "b"}}',
    "2024-11-29T15:11:00Z 192.168.0.1 +49 30 123456",
    "0123456789 00001111 3.1415926535",
    "中文分词测试,这是一个句子。",
    "日本語の文章です。カタカナとひらがな。",
    "한국어 문장입니다.",
    "😀😃😄 👩🏽‍🚀 🏳️‍🌈 🇫🇷",
    "Ω≈ç√∫˜µ≤≥÷ ∀x∈ℝ: ⌈x⌉",
    "Ünïcödé ßtraße ŁÓDŹ ČŠŽ",
    "مرحبا بالعالم",
    "שלום עולם",
    "Привет, мир! Как дела?",
    "Γειά σου Κόσμε",
    "สวัสดีชาวโลก",
    "नमस्ते दुनिया",
    "don't can't I'll we've they're it's he'd",
    "   leading and trailing   ",
    "\t\ttabs\tand\nnewlines\r\n\r\n\n",
    "multiple     spaces      between",
    "UPPER lower MiXeD snake_case camelCase kebab-case",
    "a.b.c/d/e\\f\\g@h#i$j%k^l&m*n(o)p",
    "http://example.com/path?query=1&x=%20#frag",
    "\u00a0non\u2003breaking\u200bspaces\ufeff",
    "e\u0301 vs \u00e9, \ufb01 ligature, \u212b",
    "control \x00\x01\x7f characters",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|> <repo_name> <file_sep> not special: <|im_start",
    "```python\nprint('hello')\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "1st 2nd 3rd 4th ½ ² ³ Ⅳ ٤",
    "...---...!!!???",
]
CHATS = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2? é 世"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b <x> & 'y'"},
        {"role": "user", "content": "c\n"},
    ],
]


@pytest.fixture(scope="module")
def ours(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def oracle(smollm2: Path) -> PreTrainedTokenizerBase:
    """transformers reads tokens and merges but not the splitter's name; the model's tokenizer.json has this one."""
    loaded = AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    digits, gpt2 = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    loaded.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, gpt2])
    return loaded


def many_texts(texts: list[str]) -> list[str]:
    """The fixed texts, and shuffled mixtures of their words and characters."""
    fixed, rng = [*texts, *MORE_TEXTS], random.Random(7)
    words, characters = " ".join(fixed).split(" "), "".join(fixed)
    mixed = [" ".join(rng.choices(words, k=12)) for _ in range(30)]
    return [*fixed, *mixed, *("".join(rng.choices(characters, k=40)) for _ in range(30))]


@pytest.mark.torch  # transformers needs it to read GGUF
def test_ids_and_text(ours: Tokenizer, oracle: PreTrainedTokenizerBase, texts: list[str]) -> None:
    all_texts = many_texts(texts)
    assert len(all_texts) >= 100
    for text in all_texts:
        ids = oracle.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_numerals_stand_alone(ours: Tokenizer) -> None:
    """The splitter is right: the vocabulary was trained with every numeral cut off, no token mixes it with others."""
    for token_id in range(ours.vocab_size):
        piece = ours.pieces.piece(token_id)
        assert isinstance(piece, bytes)
        text = piece.decode(errors="replace")
        assert len(text) == 1 or not any(unicodedata.category(char).startswith("N") for char in text)
    space, half = ours.encode(" ", add_special_tokens=False), ours.encode("½", add_special_tokens=False)
    assert ours.encode(" ½") == [*space, *half]


def test_stream_of_real_texts(ours: Tokenizer, texts: list[str]) -> None:
    for text in many_texts(texts):
        stream = TextStream(ours, skip_special_tokens=False)
        pieces = [stream.push([i]) for i in ours.encode(text)]
        assert "".join(pieces) + stream.finish() == text


@pytest.mark.torch
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_chat(ours: Tokenizer, oracle: PreTrainedTokenizerBase, chat: list[dict[str, str]], prompt: bool) -> None:
    expected = oracle.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
    text = ours.render_chat(chat, add_generation_prompt=prompt)
    assert text == expected
    ids = oracle.apply_chat_template(chat, tokenize=True, add_generation_prompt=prompt, return_dict=False)
    assert ours.encode(text, add_special_tokens=False) == ids


def test_facts(ours: Tokenizer) -> None:
    """From the model card: <|im_end|> (2) ends a turn, 49152 tokens, no BOS in front of plain text."""
    assert ours.vocab_size == 49152
    assert 2 in ours.eos_token_ids
    assert ours.encode("Hello") == ours.encode("Hello", add_special_tokens=False)
