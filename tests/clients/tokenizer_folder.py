"""Writes the tokenizer of a GGUF file as a Hugging Face folder, for clients that count tokens themselves."""

from __future__ import annotations

import json
from pathlib import Path

from baton.text.tokenizer import load_tokenizer


def write_tokenizer(gguf: Path, folder: Path, max_model_len: int) -> None:
    """tokenizer.json and tokenizer_config.json; `folder` must exist.

    vllm bench also wants a config.json that names a model type.
    """
    tokenizer = load_tokenizer(gguf)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config = {
        **tokenizer.special_tokens,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_model_len,
        "chat_template": tokenizer.chat_templates.get("default"),
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
