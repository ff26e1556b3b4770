"""Completions with a tokenizer whose words carry their spaces (Llama 2, Mistral): text that continues the prompt's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from baton.text.tokenizer import load_tokenizer
from tests.server.harness import Server, run_server

pytestmark = pytest.mark.slow

WORDS = ["<s>", "</s>", "\u2581", "a", "b", "c", "\u2581a", "\u2581b", "\u2581c", "ab", "\u2581ab"]
VOCAB = [*WORDS, *(f"<0x{byte:02X}>" for byte in (0x20, 0xC3, 0xA9, 0xE4, 0xB8, 0x96))]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama 2 tokenizer of few words: a space in front of every text, stripped by decode."""
    path = tmp_path_factory.mktemp("words")
    merges = [("a", "b"), ("\u2581", "a"), ("\u2581", "b"), ("\u2581", "c"), ("\u2581a", "b"), ("\u2581", "ab")]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(VOCAB)}, merges, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(f'{{"bos_token": "<s>", "chat_template": "{TEMPLATE}"}}')
    return path


@pytest.fixture(scope="module")
def words(folder: Path) -> Iterator[Server]:
    with run_server(folder, vocab_size=len(VOCAB)) as running:
        yield running


def taken(server: Server, body: dict[str, Any], *, stream: bool) -> list[tuple[str, list[int], list[int]]]:
    """(text, token ids, text offsets) of every choice."""
    chunks = [server.complete(**body)] if not stream else server.stream("/v1/completions", **body)
    found: dict[int, tuple[str, list[int], list[int]]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        text, ids, offsets = found.setdefault(choice["index"], ("", [], []))
        entry = (text + choice["text"], ids + choice["token_ids"], offsets + choice["logprobs"]["text_offset"])
        found[choice["index"]] = entry
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", ["ab c", "", [0], [6, 7, 1], [6, 7] * 100], ids=str)
def test_completion_continues(words: Server, folder: Path, prompt: Any, echo: bool, stream: bool) -> None:
    """Texts are the end of decode(prompt + output), with echo all of it; offsets of the outputs are places in it."""
    tokenizer = load_tokenizer(folder)
    body = {
        "prompt": prompt,
        "echo": echo,
        "n": 6,
        "max_tokens": 12,
        "seed": 3,
        "logprobs": 0,
        "return_token_ids": True,
    }
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    shown = tokenizer.decode(ids)
    firsts = set()
    for text, output, offsets in taken(words, body, stream=stream):
        whole = tokenizer.decode(ids + output)
        assert text == (whole if echo else whole[len(shown) :])
        start = len(shown) if echo else 0
        own = offsets[-len(output) :]
        assert own[0] == start and own == sorted(own) and own[-1] <= len(text)
        firsts.add(whole[len(shown) : len(shown) + 1])
    assert (" " in firsts) is bool(shown), "this seed's first words include some with a space"


def test_chat_continues_its_prompt(words: Server, folder: Path) -> None:
    """As vLLM: the space of the first word behind the template's text stays."""
    tokenizer = load_tokenizer(folder)
    body = {"messages": [{"role": "user", "content": "ab c"}], "n": 6, "max_tokens": 5, "seed": 3}
    answer = words.chat(**body, return_token_ids=True)
    for choice in answer["choices"]:
        whole = tokenizer.decode(answer["prompt_token_ids"] + choice["token_ids"])
        assert choice["message"]["content"] == whole[len(tokenizer.decode(answer["prompt_token_ids"])) :]
