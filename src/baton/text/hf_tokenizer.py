"""Builds a tokenizer from a Hugging Face folder: tokenizer.json and the small JSON files beside it.

Read directly and not through transformers' AutoTokenizer: that import alone takes seconds and loads torch where it
finds it, and for models with a tokenizer.json it adds nothing but what this file does. Folders without one go
through transformers, which converts older formats. Whether BOS is added is tokenizer.json's to say, as in transformers
(add_bos_token of tokenizer_config.json counts only without it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from baton.core.errors import ModelError
from baton.text.tokenizer import Tokenizer

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Tokenizer, end tokens and chat templates of a Hugging Face folder.

    Raises:
        ModelError: no tokenizer files, or files that cannot be read.
    """
    settings = _json(folder / "tokenizer_config.json")
    special = _special_texts(settings, _json(folder / "special_tokens_map.json"))
    backend = _backend(folder)
    _add_declared_tokens(backend, settings, special)
    eos = special.get("eos_token")
    return Tokenizer(
        backend,
        eos_token_ids=_eos_ids(folder, None if eos is None else backend.token_to_id(eos)),
        special_tokens=special,
        chat_templates=_chat_templates(folder, settings),
    )


def _json(path: Path) -> dict[str, Any]:
    """Contents of a JSON file; empty when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object")
    return content


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _converted(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"cannot read {path}: {error}") from error


def _converted(folder: Path) -> tokenizers.Tokenizer:
    """For older formats: vocab.json with merges.txt, or a SentencePiece tokenizer.model."""
    if not any((folder / name).is_file() for name in ("vocab.json", "tokenizer.model")):
        raise ModelError(f"{folder} has no tokenizer.json")
    try:
        from transformers import AutoTokenizer

        loaded = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        backend: tokenizers.Tokenizer = loaded.backend_tokenizer
    except Exception as error:  # many kinds, from missing packages to malformed files
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ModelError(f"{folder} has no tokenizer.json and transformers cannot make one: {reason}") from error
    return backend


def _content(token: object) -> str | None:
    """Text of a token that is written as text or as an object."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _special_texts(settings: Mapping[str, Any], special_map: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for role in _ROLES:
        text = _content(settings.get(role)) or _content(special_map.get(role))
        if text is not None:
            texts[role] = text
    return texts


def _add_declared_tokens(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], special: Mapping[str, str]
) -> None:
    """Tokens of tokenizer_config.json that tokenizer.json lacks, at the ids that are declared."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = settings.get("added_tokens_decoder") or {}
    for token_id, entry in sorted(declared.items(), key=lambda item: int(item[0])):
        text = _content(entry)
        if text is None or text in known:
            continue
        flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "normalized")}
        is_special = bool(entry.get("special", False)) or text in special.values()
        backend.add_tokens([AddedToken(text, special=is_special, **flags)])
        if backend.token_to_id(text) != int(token_id):
            raise ModelError(f"added token {text!r} cannot have id {token_id}: tokenizer.json has other tokens there")
        known.add(text)
    backend.add_special_tokens([AddedToken(t, special=True) for t in special.values() if t not in known])


def _eos_ids(folder: Path, eos_id: int | None) -> frozenset[int]:
    """generation_config.json (else config.json), and the tokenizer's own EOS."""
    ids: set[int] = set() if eos_id is None else {eos_id}
    for name in ("generation_config.json", "config.json"):
        declared = _json(folder / name).get("eos_token_id")
        if declared is not None:
            ids.update(declared if isinstance(declared, list) else [declared])
            break
    return frozenset(ids)


def _chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files win over tokenizer_config.json, as newer checkpoints keep them apart."""
    inline = settings.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(inline, str):
        templates["default"] = inline
    elif isinstance(inline, list):
        templates.update({entry["name"]: entry["template"] for entry in inline})
    legacy = _json(folder / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        templates["default"] = legacy
    files = {"default": folder / "chat_template.jinja"}
    files.update({path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))})
    for name, path in files.items():
        if path.is_file():
            templates[name] = path.read_text(encoding="utf-8")
    return templates
