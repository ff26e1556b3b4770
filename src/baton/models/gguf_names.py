"""Which Hugging Face parameter a tensor of a GGUF file is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from baton.core.errors import ModelError


class Transform(Enum):
    """What stands between the stored tensor and the parameter."""

    NONE = "none"
    UNPERMUTE_Q = "unpermute_q"
    UNPERMUTE_K = "unpermute_k"
    SPLIT_EXPERTS = "split_experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Name of a parameter; for SPLIT_EXPERTS with `{expert}` in it."""

    name: str
    transform: Transform = Transform.NONE


_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Not parameters: rope factors are part of the config.
_SKIPPED = frozenset(("rope_freqs.weight",))


def parameter_of(tensor: str, *, permuted: bool) -> Parameter | None:
    """The parameter that `tensor` holds, or None when it holds none.

    Args:
        permuted: q and k rows are in the pair-interleaved order of llama-architecture files.

    Raises:
        ModelError: a tensor that no supported model has.
    """
    if tensor in _SKIPPED:
        return None
    if tensor in _TOP:
        return Parameter(name=_TOP[tensor])
    match = _LAYER_NAME.fullmatch(tensor)
    layer, part, suffix = match.groups() if match else ("", "", "")
    prefix = f"model.layers.{layer}."
    if part in _EXPERTS:
        name = f"{prefix}mlp.experts.{{expert}}.{_EXPERTS[part]}.{suffix}"
        return Parameter(name=name, transform=Transform.SPLIT_EXPERTS)
    if part not in _LAYER:
        raise ModelError(f"tensor {tensor!r} of the GGUF file belongs to no supported model")
    transform = Transform.NONE
    if permuted and part in ("attn_q", "attn_k"):
        transform = Transform.UNPERMUTE_Q if part == "attn_q" else Transform.UNPERMUTE_K
    return Parameter(name=f"{prefix}{_LAYER[part]}.{suffix}", transform=transform)
