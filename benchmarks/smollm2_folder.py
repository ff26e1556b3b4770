"""Write a GGUF file as a Hugging Face folder (bfloat16 safetensors, tokenizer), so that other engines can serve it.

    python benchmarks/smollm2_folder.py FILE.gguf FOLDER

Only Llama-architecture files with a tied embedding, such as SmolLM2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from baton.models.gguf import gguf_config, gguf_weights
from baton.text.tokenizer import load_tokenizer


def main() -> None:
    """Convert; nothing is downloaded."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    config = gguf_config(source)
    if config.architecture != "LlamaForCausalLM" or not config.tie_word_embeddings:
        sys.exit(f"{source} is no tied Llama model")
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in gguf_weights(source, config)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = {
        "architectures": [config.architecture],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=1))
    tokenizer = load_tokenizer(source)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    special = {name: text for name, text in tokenizer.special_tokens.items() if isinstance(text, str)}
    template = tokenizer.chat_templates.get("default", "")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **special}, indent=1)
    )


if __name__ == "__main__":
    main()
