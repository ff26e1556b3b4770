"""Builds a tokenizer from the metadata of a GGUF file (`tokenizer.ggml.*`, `tokenizer.chat_template*`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from baton.core.errors import ModelError
from baton.text.gguf_file import GgufFile, read_gguf
from baton.text.pre_split import PRE_SPLITS, PreSplit
from baton.text.tokenizer import Tokenizer

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
# Control tokens that end a turn or a text in every vocabulary that has them; files name only one of them as EOS.
_ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
)
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelled so in the format
}


def tokenizer_from_gguf(path: Path) -> Tokenizer:
    """Tokenizer, end tokens and chat templates of a GGUF file.

    Raises:
        ModelError: the vocabulary is missing, or of a kind that is not supported; names it.
    """
    file = read_gguf(path)
    kind = file.require("tokenizer.ggml.model", str)
    if kind == "gpt2":
        backend, add_bos = _byte_level(file)
    elif kind == "llama":
        backend, add_bos = _sentencepiece(file), True
    else:
        raise ModelError(f"{path}: tokenizer type {kind!r} is not supported; supported: gpt2, llama")
    _add_special_tokens(file, backend)
    _add_post_processor(file, backend, add_bos)
    return Tokenizer(
        backend,
        eos_token_ids=gguf_eos_token_ids(file),
        special_tokens=_special_texts(file),
        chat_templates=_chat_templates(file),
    )


def gguf_eos_token_ids(file: GgufFile) -> frozenset[int]:
    """The ids that end an output: those the metadata names, and well-known control tokens of the vocabulary."""
    named = (file.get(f"tokenizer.ggml.{key}_token_id", int) for key in ("eos", "eot", "eom"))
    found = {token_id for token_id in named if token_id is not None}
    pairs = zip(_tokens(file), _types(file), strict=True)
    return frozenset(found | {i for i, (token, kind) in enumerate(pairs) if kind == _CONTROL and token in _ENDS})


def _tokens(file: GgufFile) -> list[str]:
    return cast(list[str], file.require("tokenizer.ggml.tokens", list))


def _types(file: GgufFile) -> list[int]:
    tokens = _tokens(file)
    types = cast(list[int], file.get("tokenizer.ggml.token_type", list) or [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: {len(tokens)} tokens but {len(types)} token types; the file is damaged")
    return types


def _byte_level(file: GgufFile) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE, and whether it adds BOS unless the file says otherwise."""
    split = _split(file)
    vocab = {token: i for i, token in enumerate(_tokens(file))}
    merges = [_pair(file, merge) for merge in file.require("tokenizer.ggml.merges", list)]
    backend = _backend(file, vocab, merges, ignore_merges=split.ignore_merges)
    normalizer = split.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, split.add_bos


def _split(file: GgufFile) -> PreSplit:
    name = file.get("tokenizer.ggml.pre", str)
    if name is None and file.require("general.architecture", str).startswith("qwen"):
        name = "qwen2"  # Files older than the key; all models of these architectures use this splitter.
    split = PRE_SPLITS.get(name or "default")
    if split is None:
        raise ModelError(
            f"{file.path}: pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported;"
            f" supported: {', '.join(PRE_SPLITS)}"
        )
    return split


def _pair(file: GgufFile, merge: object) -> tuple[str, str]:
    left, space, right = merge.partition(" ") if isinstance(merge, str) else ("", "", "")
    if not (left and space and right):
        raise ModelError(f"{file.path}: merge {merge!r} is not a pair; the file is damaged")
    return left, right


def _sentencepiece(file: GgufFile) -> tokenizers.Tokenizer:
    """SentencePiece BPE with byte fallback, as merges: pieces form in the order of their scores."""
    tokens, types = _tokens(file), _types(file)
    vocab = {token: i for i, token in enumerate(tokens)}
    scores = cast(list[float], file.require("tokenizer.ggml.scores", list))
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: {len(tokens)} tokens but {len(scores)} scores; the file is damaged")
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = _merges_by_score(vocab, scores, types)
    backend = _backend(file, vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefix = file.get("tokenizer.ggml.add_space_prefix", bool) is not False
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace] if prefix else [replace])
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges_by_score(vocab: dict[str, int], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others; best score first, then lower ids of the two parts."""
    ranked = []
    for piece, i in vocab.items():
        if types[i] not in (_NORMAL, _USER_DEFINED):
            continue
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], i, left, right, piece[:cut], piece[cut:]))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]


def _backend(
    file: GgufFile, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    """A BPE tokenizer, or a ModelError when vocabulary and merges contradict each other."""
    try:
        backend: tokenizers.Tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # the library raises bare Exception, e.g. for a merge of tokens not in the vocabulary
        raise ModelError(f"{file.path}: the vocabulary does not fit its merges: {error}") from error
    return backend


def _add_special_tokens(file: GgufFile, backend: tokenizers.Tokenizer) -> None:
    """Tokens that are found in the text before any splitting."""
    special, plain = [], []
    for token, kind in zip(_tokens(file), _types(file), strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    backend.add_special_tokens(special)
    backend.add_tokens(plain)


def _add_post_processor(file: GgufFile, backend: tokenizers.Tokenizer, add_bos: bool) -> None:
    """BOS in front and EOS behind where the metadata, or else the kind of vocabulary, says so."""
    texts = _special_texts(file)
    declared = file.get("tokenizer.ggml.add_bos_token", bool)
    bos = texts.get("bos_token") if (add_bos if declared is None else declared) else None
    eos = texts.get("eos_token") if file.get("tokenizer.ggml.add_eos_token", bool) else None
    used = [(token, backend.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token is not None]
    if used:
        single = [token for token in (bos, "$A", eos) if token is not None]
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=used)


def _special_texts(file: GgufFile) -> dict[str, str]:
    """Text of the tokens with a role, by the role's name in templates."""
    tokens = _tokens(file)
    texts = {}
    for role, key in _ROLES.items():
        token_id = file.get(f"tokenizer.ggml.{key}", int)
        if token_id is not None and 0 <= token_id < len(tokens):
            texts[role] = tokens[token_id]
    return texts


def _chat_templates(file: GgufFile) -> dict[str, str]:
    templates = {}
    default = file.get("tokenizer.chat_template", str)
    if default is not None:
        templates["default"] = default
    for name in cast(list[str], file.get("tokenizer.chat_templates", list) or []):
        source = file.get(f"tokenizer.chat_template.{name}", str)
        if source is not None:
            templates[name] = source
    return templates
