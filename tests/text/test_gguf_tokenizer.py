"""Tokenizers from GGUF metadata against transformers' own classes and against each file's declared behaviour."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_REGEX

from baton.core.errors import ModelError
from baton.text.tokenizer import Tokenizer, load_tokenizer

WriteGguf = Callable[..., Path]


def llama3_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """The pattern transformers gives Llama 3's tiktoken vocabulary."""
    split = pre_tokenizers.Split(Regex(TikTokenConverter("").pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def qwen2_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(QWEN2_REGEX), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def smollm_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """As SmolLM2's tokenizer.json: digits apart, then GPT-2."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


FAMILIES = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": smollm_pre_tokenizer,
    "llama-bpe": llama3_pre_tokenizer,
    "qwen2": qwen2_pre_tokenizer,
}


def metadata_of(backend: Backend, **more: object) -> dict[str, object]:
    """What a converter writes for a byte-level tokenizer with three control tokens in front."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(tokens) - 3)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **more,
    }


@pytest.mark.parametrize("pre", FAMILIES)
def test_ids_equal_the_original(pre: str, write_gguf: WriteGguf, trained: Any, texts: list[str]) -> None:
    """A tokenizer trained with each family's splitter comes back from its metadata with the same ids."""
    original = trained(FAMILIES[pre]())
    if pre == "qwen2":
        original.normalizer = normalizers.NFC()
    ours = load_tokenizer(write_gguf(metadata_of(original, **{"tokenizer.ggml.pre": pre})))
    for text in texts:
        expected = original.encode(text).ids
        assert ours.encode(text, add_special_tokens=False) == expected, text
        assert ours.decode(expected) == original.decode(expected)


def test_splitters_differ(write_gguf: WriteGguf, trained: Any) -> None:
    """The texts above can tell the families apart: digits are cut in ones, threes or not at all."""
    backend = trained(FAMILIES["gpt-2"](), size=259)
    words = {}
    for pre in (*FAMILIES, "default"):
        split = load_tokenizer(write_gguf(metadata_of(backend, **{"tokenizer.ggml.pre": pre}))).backend.pre_tokenizer
        words[pre] = [word for word, _ in split.pre_tokenize_str("ab12345!")]
    assert words == {
        "gpt-2": ["ab", "12345", "!"],
        "smollm": ["ab", "1", "2", "3", "4", "5", "!"],
        "llama-bpe": ["ab", "123", "45", "!"],
        "qwen2": ["ab", "1", "2", "3", "4", "5", "!"],
        "default": ["ab", "123", "45", "!"],
    }


def test_qwen_files_without_a_splitter_name(write_gguf: WriteGguf, trained: Any) -> None:
    """Files older than tokenizer.ggml.pre: the architecture tells."""
    backend = trained(FAMILIES["qwen2"]())
    ours = load_tokenizer(write_gguf(metadata_of(backend, **{"general.architecture": "qwen2"})))
    assert [word for word, _ in ours.backend.pre_tokenizer.pre_tokenize_str("12")] == ["1", "2"]


def test_llama3_takes_whole_words_first(write_gguf: WriteGguf, trained: Any) -> None:
    """ignore_merges: a word that is a token is that token, though no merge leads to it."""
    metadata = metadata_of(trained(llama3_pre_tokenizer()), **{"tokenizer.ggml.pre": "llama-bpe"})
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [*tokens, "zqzq"]
    metadata["tokenizer.ggml.token_type"] = [3, 3, 3, *[1] * (len(tokens) - 2)]
    ours = load_tokenizer(write_gguf(metadata))
    assert ours.encode("zqzq", add_special_tokens=False) == [len(tokens)]


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("gpt-2", {}, (False, False)),
        ("llama-bpe", {}, (True, False)),  # llama.cpp's default for this splitter
        ("llama-bpe", {"tokenizer.ggml.add_bos_token": False}, (False, False)),
        ("gpt-2", {"tokenizer.ggml.add_bos_token": True}, (True, False)),
        ("gpt-2", {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, (True, True)),
    ],
)
def test_bos_and_eos(
    pre: str, flags: dict[str, object], expected: tuple[bool, bool], write_gguf: WriteGguf, trained: Any
) -> None:
    ours = load_tokenizer(write_gguf(metadata_of(trained(FAMILIES[pre]()), **{"tokenizer.ggml.pre": pre}, **flags)))
    plain = ours.encode("hello", add_special_tokens=False)
    assert ours.encode("hello") == [1] * expected[0] + plain + [2] * expected[1]
    assert (ours.bos_token_id, 1 in plain) == (1, False)


def test_control_tokens_are_special_and_end_the_output(write_gguf: WriteGguf, trained: Any) -> None:
    """EOS is <|im_end|> by id; <|endoftext|> is known by name; <|im_start|> ends nothing."""
    ours = load_tokenizer(write_gguf(metadata_of(trained(FAMILIES["gpt-2"]()))))
    assert ours.eos_token_ids == {0, 2}
    assert ours.special_token_ids == {0, 1, 2}
    assert ours.encode("<|im_start|>hello")[0] == 1
    assert ours.decode([1, 2]) == ""
    assert ours.decode([1, 2], skip_special_tokens=False) == "<|im_start|><|im_end|>"
    assert ours.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_user_defined_tokens_are_whole_but_not_special(write_gguf: WriteGguf, trained: Any) -> None:
    """Like Qwen3's <think>: one token, and part of the text."""
    metadata = metadata_of(trained(FAMILIES["gpt-2"]()))
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    metadata["tokenizer.ggml.tokens"] = [*tokens, "<think>"]
    metadata["tokenizer.ggml.token_type"] = [3, 3, 3, *[1] * (len(tokens) - 3), 4]
    ours = load_tokenizer(write_gguf(metadata))
    ids = ours.encode("a<think>b")
    assert ids[1] == len(tokens)
    assert ours.decode(ids) == "a<think>b"
    assert ours.vocab_size == len(tokens) + 1


def test_chat_templates(write_gguf: WriteGguf, trained: Any) -> None:
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    plain = {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    ours = load_tokenizer(write_gguf(metadata_of(trained(FAMILIES["gpt-2"]()), **plain, **named)))
    text = ours.render_chat([{"role": "user", "content": "hi"}])
    assert text == "<|im_start|>hi"
    assert ours.encode(text, add_special_tokens=False).count(1) == 1
    assert ours.render_chat([{"role": "user", "content": "hi"}], tools=[{}]) == "tools"


def test_sentencepiece_ids(sentencepiece: Tokenizer) -> None:
    """By hand: BOS, the dummy space, best score first, bytes for what has no piece."""
    token = sentencepiece.backend.token_to_id
    # "qu"+"ick" -> "_quick"; scores of "_the" (0) before "_th" (-4).
    assert sentencepiece.encode("the quick") == [1, token("\u2581the"), token("\u2581quick")]
    assert sentencepiece.encode("hello", add_special_tokens=False) == [token("\u2581hello")]
    thumb = [3 + byte for byte in "👍".encode()]
    assert sentencepiece.encode("the👍", add_special_tokens=False) == [token("\u2581the"), *thumb]
    assert sentencepiece.encode("", add_special_tokens=False) == []
    assert sentencepiece.eos_token_ids == {2}


def test_sentencepiece_text_comes_back(sentencepiece: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        assert sentencepiece.decode(sentencepiece.encode(text)) == text


def test_sentencepiece_ids_equal_transformers(
    sentencepiece: Tokenizer, spm_metadata: Callable[[], dict[str, Any]]
) -> None:
    """transformers' LlamaTokenizer over the same vocabulary, with merges from its own score rule."""
    from transformers import LlamaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    tokens, scores = (spm_metadata()[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)), skip_tokens=tokens[:259])
    oracle = LlamaTokenizer(vocab=vocab, merges=merges)
    for text in ("the quick world, hello!", "he hello thequick", "café 世界 🙂 👍", "a  b   the", "x\ny\t"):
        assert sentencepiece.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False)


def test_sentencepiece_without_dummy_space(write_gguf: WriteGguf, spm_metadata: Callable[[], dict[str, Any]]) -> None:
    ours = load_tokenizer(write_gguf({**spm_metadata(), "tokenizer.ggml.add_space_prefix": False}))
    ids = ours.encode("hello", add_special_tokens=False)
    assert ids == [ours.backend.token_to_id("hello")]
    assert ours.decode([*ids, ours.backend.token_to_id("\u2581the")]) == "hello the"
    assert ours.decode([ours.backend.token_to_id("\u2581the")]) == " the"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not supported; supported: gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' .*supported: default, gpt-2"),
        ({"tokenizer.ggml.merges": ["nospace"]}, "not a pair"),
        ({"tokenizer.ggml.merges": ["never seen"]}, "does not fit its merges"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "2 token types"),
    ],
)
def test_refused_by_name(change: dict[str, object], reason: str, write_gguf: WriteGguf, trained: Any) -> None:
    path = write_gguf({**metadata_of(trained(FAMILIES["gpt-2"]())), **change})
    with pytest.raises(ModelError, match=reason) as caught:
        load_tokenizer(path)
    assert "\n" not in str(caught.value)


def test_missing_vocabulary(write_gguf: WriteGguf) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model is missing"):
        load_tokenizer(write_gguf({"general.architecture": "llama"}))
