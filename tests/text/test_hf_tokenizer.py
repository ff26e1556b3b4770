"""Tokenizers from Hugging Face folders against transformers, and the small JSON files beside tokenizer.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from baton.core.errors import ModelError, RequestError
from baton.text.tokenizer import Tokenizer, load_tokenizer

Folder = Callable[..., Path]


@pytest.fixture
def folder(byte_folder: Path, tmp_path: Path) -> Folder:
    """Copies the byte-level folder and writes further JSON (or text) files into it."""

    def make(**files: object) -> Path:
        target = tmp_path / "model"
        shutil.copytree(byte_folder, target)
        for name, content in files.items():
            is_text = isinstance(content, str)
            path = target / f"{name}.{'jinja' if is_text else 'json'}"
            path.write_text(content if is_text else json.dumps(content))
        return target

    return make


SETTINGS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize("with_bos", [False, True])
@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
def test_ids_equal_transformers(folder: Folder, with_bos: bool, flags: dict[str, bool], texts: list[str]) -> None:
    """BOS is what tokenizer.json's post-processor says, whatever the flag beside it."""
    path = folder(tokenizer_config={**SETTINGS, **flags})
    if with_bos:  # as in Llama 3's tokenizer.json
        backend = Backend.from_file(str(path / "tokenizer.json"))
        backend.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
        backend.save(str(path / "tokenizer.json"))
    ours, oracle = load_tokenizer(path), PreTrainedTokenizerFast.from_pretrained(path)
    for text in [*texts, "<|im_start|>user\nhi<|im_end|>"]:
        ids = oracle.encode(text)
        assert ours.encode(text) == ids
        assert (ids[:1] == [1]) == (with_bos or text.startswith("<|im_start|>"))
        assert ours.encode(text, add_special_tokens=False) == oracle.encode(text, add_special_tokens=False)
        for skip in (True, False):
            assert ours.decode(ids, skip) == oracle.decode(ids, skip, clean_up_tokenization_spaces=False)


def test_chat_equals_transformers(folder: Folder) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    path = folder(chat_template=template)
    messages = [{"role": "user", "content": "2 < 3 & é?"}, {"role": "assistant", "content": "ja"}]
    oracle = PreTrainedTokenizerFast.from_pretrained(path)
    expected = oracle.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert load_tokenizer(path).render_chat(messages) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {2}),
        ({"config": {"eos_token_id": 0}}, {0, 2}),
        ({"config": {"eos_token_id": 1}, "generation_config": {"eos_token_id": [0, 2]}}, {0, 2}),
        ({"generation_config": {"eos_token_id": 5}, "tokenizer_config": {}}, {5}),
        ({"tokenizer_config": {}, "special_tokens_map": {"eos_token": "<|endoftext|>"}}, {0}),
    ],
)
def test_eos(folder: Folder, files: dict[str, object], expected: set[int]) -> None:
    """generation_config.json before config.json; the tokenizer's own in any case."""
    assert load_tokenizer(folder(**files)).eos_token_ids == expected


def test_roles(byte_level: Tokenizer) -> None:
    """Tokens written as text and as objects."""
    assert byte_level.bos_token_id == 1
    assert byte_level.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    assert byte_level.special_token_ids == {0, 1, 2}


def test_declared_tokens_are_added(folder: Folder, byte_level: Tokenizer) -> None:
    """added_tokens_decoder may know more than tokenizer.json."""
    first = byte_level.vocab_size
    declared = {
        str(first + 1): {"content": "<tool>", "special": False},
        str(first): {"content": "<|new|>", "special": True},
    }
    ours = load_tokenizer(folder(tokenizer_config={**SETTINGS, "added_tokens_decoder": declared}))
    assert ours.encode("<|new|><tool>") == [first, first + 1]
    assert ours.decode([first, first + 1]) == "<tool>"
    assert ours.vocab_size == first + 2


def test_declared_token_with_a_wrong_id(folder: Folder) -> None:
    declared = {"9000": {"content": "<far>", "special": True}}
    with pytest.raises(ModelError, match="'<far>' cannot have id 9000"):
        load_tokenizer(folder(tokenizer_config={"added_tokens_decoder": declared}))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer_config": {"chat_template": "inline"}}, "inline"),
        ({"tokenizer_config": {"chat_template": [{"name": "default", "template": "listed"}]}}, "listed"),
        ({"tokenizer_config": {"chat_template": "inline"}, "chat_template": "file"}, "file"),
    ],
)
def test_where_the_template_is(folder: Folder, files: dict[str, object], expected: str) -> None:
    assert load_tokenizer(folder(**files)).render_chat([]) == expected


def test_additional_templates(folder: Folder) -> None:
    path = folder(chat_template="plain")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_tokenizer(path).render_chat([], tools=[{"type": "function"}]) == "tools"


def test_truncation_and_padding_of_the_file_are_off(folder: Folder) -> None:
    """A saved training setting must not cut prompts."""
    path = folder()
    backend = Backend.from_file(str(path / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    backend.save(str(path / "tokenizer.json"))
    ids = load_tokenizer(path).encode("one two three four five six seven")
    assert len(ids) > 8


def test_without_tokenizer_json_transformers_converts(folder: Folder, texts: list[str]) -> None:
    """vocab.json and merges.txt, as GPT-2 and the first Qwen2 folders have."""
    path = folder(
        tokenizer_config={"tokenizer_class": "GPT2Tokenizer", **SETTINGS, "unk_token": "<|endoftext|>"},
        config={"model_type": "gpt2"},
    )
    original = Backend.from_file(str(path / "tokenizer.json"))
    assert isinstance(original.model, models.BPE)
    original.model.save(str(path))
    (path / "tokenizer.json").unlink()
    ours = load_tokenizer(path)
    for text in texts:
        assert ours.encode(text) == original.encode(text).ids


def test_lone_surrogates_are_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="valid Unicode") as caught:
        byte_level.encode("\ud800")
    assert caught.value.param == "prompt"


def test_ids_beyond_the_vocabulary_give_no_text(byte_level: Tokenizer) -> None:
    assert byte_level.decode([byte_level.vocab_size + 7]) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", r"cannot read .*tokenizer\.json"), ('{"version": "1.0"}', r"cannot read .*tokenizer\.json")],
)
def test_broken_tokenizer_json(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=reason):
        load_tokenizer(tmp_path)


def test_broken_settings(folder: Folder) -> None:
    path = folder()
    (path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match="must hold a JSON object"):
        load_tokenizer(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(tmp_path / "none")


@given(text=st.text(max_size=60), special=st.booleans(), times=st.sampled_from([1, 1, 1, 200]))
def test_encode_is_the_librarys(
    byte_level: Tokenizer, sentencepiece: Tokenizer, text: str, special: bool, times: int
) -> None:
    """The call that lets other threads run gives the same ids as the plain one, for short and long texts."""
    for tokenizer in (byte_level, sentencepiece):
        for each in (text * times, f"<|im_start|>{text}</s>" * times):
            expected = tokenizer.backend.encode(each, add_special_tokens=special).ids
            assert tokenizer.encode(each, add_special_tokens=special) == expected
