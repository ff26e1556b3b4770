"""Small tokenizers of both families, and a writer of GGUF headers that shares nothing with the reader."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from baton.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2024, isn't it? We'll see 1,234,567 things.",
    "def f(x):\n    return x ** 2  # squared\n\n\tprint(f(3))\r\n",
    "Grüße aus Köln: naïve café, déjà vu. 你好,世界! こんにちは 🌍🚀👩‍👩‍👧 नमस्ते",
]
TEXTS = [
    *CORPUS,
    "",
    "hello",
    "HELLO'S don't WE'RE i'm",
    "a  b   c    d",
    "tabs\t\tand\n\n\nlines\r\n\r\nend ",
    "12345 3.14159 1e-10 0xFF ٣٤٥ ½",
    "x=y+z;{[(<>)]}&&||!=",
    "日本語のテキスト 한국어 العربية עברית ไทย",
    "🙂🙃 👨‍👩‍👧‍👦 🇩🇪 e\u0301 \u00e9",
    "trailing spaces   ",
    "foo_bar fooBar FooBAR",
]


def gguf_bytes(metadata: Mapping[str, object], version: int = 3) -> bytes:
    """A GGUF file without tensors. Lists are arrays of strings, ints or floats, by their first element."""
    out = b"GGUF" + struct.pack("<IQQ", version, 0, len(metadata))
    for key, value in metadata.items():
        kind, data = _encoded(value)
        out += _string(key) + struct.pack("<I", kind) + data
    return out


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _encoded(value: object) -> tuple[int, bytes]:
    match value:
        case bool():
            return 7, struct.pack("<B", value)
        case int():
            return 4, struct.pack("<I", value)
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
        case list():
            parts = [_encoded(item) for item in value]
            kind = parts[0][0] if parts else 4
            return 9, struct.pack("<IQ", kind, len(value)) + b"".join(data for _, data in parts)
    raise TypeError(type(value))


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts with code, digits, spaces, several scripts, emoji and contractions."""
    return TEXTS


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes metadata to a .gguf file; further arguments go to `gguf_bytes`."""

    def write(metadata: Mapping[str, object], **options: int) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf_bytes(metadata, **options))
        return path

    return write


def train_byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer, size: int = 420) -> Backend:
    """Byte-level BPE trained on CORPUS, with three special tokens in front."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="session")
def trained() -> Callable[..., Backend]:
    """`train_byte_level`, for test modules."""
    return train_byte_level


@pytest.fixture(scope="session")
def spm_metadata() -> Callable[[], dict[str, object]]:
    """`sentencepiece_metadata`, for test modules."""
    return sentencepiece_metadata


@pytest.fixture(scope="session")
def byte_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("byte_level")
    train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).save(str(folder / "tokenizer.json"))
    eos = {"__type": "AddedToken", "content": "<|im_end|>", "normalized": False, "special": True}
    settings = {"bos_token": "<|im_start|>", "eos_token": eos, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def byte_level(byte_folder: Path) -> Tokenizer:
    """Byte-level BPE (the family of GPT-2, Llama 3, Qwen, SmolLM)."""
    return load_tokenizer(byte_folder)


def sentencepiece_metadata() -> dict[str, object]:
    """A SentencePiece vocabulary with byte fallback: scores fall with the id, as in Llama's."""
    words = ["\u2581the", "\u2581qu", "ick", "\u2581quick", "\u2581th", "th", "he", "qu", "ck", "\u2581t", "\u2581q"]
    words += ["\u2581hello", "hello", "\u2581he", "ll", "llo", "\u2581\u2581", "\u2581w", "wor", "world", "ld", "or"]
    chars = sorted(set("\u2581abcdefghijklmnopqrstuvwxyz.,!?123 é世🙂".replace(" ", "")))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words, *chars]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(words) + len(chars))]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))] + [-1e9] * len(chars)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """SentencePiece BPE with byte fallback (the family of Llama 2 and Mistral)."""
    path = tmp_path_factory.mktemp("sentencepiece") / "model.gguf"
    path.write_bytes(gguf_bytes(sentencepiece_metadata()))
    return load_tokenizer(path)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF: $BATON_SMOLLM2, or ~/.cache/baton/ where scripts put it."""
    named = os.environ.get("BATON_SMOLLM2")
    found = [Path(named)] if named else sorted(Path("~/.cache/baton").expanduser().rglob("SmolLM2-135M*.gguf"))
    if not found:
        pytest.skip("SmolLM2 GGUF not there; scripts/test gets it, or set BATON_SMOLLM2")
    return found[0]
