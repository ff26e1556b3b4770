"""The decoder shared by Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE; they differ by flags of `ModelConfig`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from baton.cache.spec import AttentionSpec
from baton.core.model_config import ModelConfig
from baton.kernels.interface import Kernels
from baton.layers.attention import Attention
from baton.layers.context import ForwardContext
from baton.layers.mlp import Mlp
from baton.layers.moe import Moe
from baton.layers.norm import RmsNorm
from baton.layers.parallel import LmHead, VocabEmbedding, kv_copies
from baton.layers.rope import RopeTable
from baton.layers.shard import Shard
from baton.models.slots import WeightSlot

LinearLoad = Callable[[str, Tensor], None]


class DecoderLayer:
    """Attention and feed-forward (dense or experts), each behind a norm and added to the residual stream."""

    def __init__(
        self, config: ModelConfig, layer: int, *, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_norm = RmsNorm(width, eps, dtype=dtype, device=device)
        self.attention = Attention(config, layer, shard=shard, dtype=dtype, device=device)
        self.mlp_norm = RmsNorm(width, eps, dtype=dtype, device=device)
        self.mlp: Mlp | Moe
        if config.moe is not None and config.is_moe_layer(layer):
            self.mlp = Moe(width, config.moe, shard=shard, dtype=dtype, device=device)
        else:
            inner = config.intermediate_size
            self.mlp = Mlp(width, inner, bias=config.mlp_bias, shard=shard, dtype=dtype, device=device)

    def finalize(self, kernels: Kernels) -> None:
        """Call once after loading."""
        self.attention.finalize(kernels)
        self.mlp.finalize(kernels)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        ctx: ForwardContext,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """[T, M] and the residual stream before x was added to it -> the same pair after this layer.

        Args:
            rows: int64 [R], rows to go on with after attention; all by default.
        """
        if residual is None:
            x, residual = self.input_norm(x, ctx.kernels), x
        else:
            x, residual = self.input_norm.add(x, residual, ctx.kernels)
        x = self.attention(x, cos, sin, ctx, rows)
        if rows is not None:
            residual = residual[rows]
        if x.shape[0] == 0:
            return x, residual
        x, residual = self.mlp_norm.add(x, residual, ctx.kernels)
        return self.mlp(x, ctx), residual


class Transformer:
    """A whole model on one rank: empty until its `weight_slots` are filled and `finalize` is called.

    Args:
        max_model_len: positions that will ever be used, for the rope table.
    """

    def __init__(
        self, config: ModelConfig, *, max_model_len: int, shard: Shard, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._shard = shard
        self._dtype = dtype
        vocab, width = config.vocab_size, config.hidden_size
        self._rope = RopeTable(config.rope, max_model_len, dtype=dtype, device=device)
        self._embedding = VocabEmbedding(vocab, width, shard=shard, dtype=dtype, device=device)
        self._layers = [
            DecoderLayer(config, layer, shard=shard, dtype=dtype, device=device) for layer in range(config.num_layers)
        ]
        self._norm = RmsNorm(width, config.rms_norm_eps, dtype=dtype, device=device)
        tied = self._embedding if config.tie_word_embeddings else None
        self._head = LmHead(vocab, width, tied=tied, shard=shard, dtype=dtype, device=device)

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Every tensor of a Hugging Face checkpoint of this model, by name."""
        config = self._config
        table = (config.vocab_size, config.hidden_size)
        slots = {
            "model.embed_tokens.weight": WeightSlot(shape=table, load=self._embedding.load),
            "model.norm.weight": WeightSlot(shape=(config.hidden_size,), load=self._norm.load),
            "lm_head.weight": WeightSlot(shape=table, load=self._head.load, optional=config.tie_word_embeddings),
        }
        for index, layer in enumerate(self._layers):
            prefix = f"model.layers.{index}."
            slots |= {prefix + name: slot for name, slot in _layer_slots(config, layer).items()}
        return slots

    def finalize(self, kernels: Kernels) -> None:
        """Hand the weights to the kernels; call once after loading.

        Raises:
            ModelError: see `LmHead.finalize`.
        """
        for layer in self._layers:
            layer.finalize(kernels)
        self._head.finalize(kernels)

    def cache_specs(self) -> tuple[AttentionSpec, ...]:
        """The KV that this rank keeps."""
        config, shard = self._config, self._shard
        return (
            AttentionSpec(
                num_layers=config.num_layers,
                num_kv_heads=config.num_kv_heads * kv_copies(config.num_kv_heads, shard) // shard.size,
                head_dim=config.head_dim,
                dtype_bytes=self._dtype.itemsize,
            ),
        )

    def forward(self, token_ids: Tensor, ctx: ForwardContext, rows: Tensor | None = None) -> Tensor:
        """int64 [T], each in [0, vocab_size) -> hidden rows [T, M] after the final norm; writes KV of all layers.

        Args:
            rows: int64 [R], rows whose hidden state is wanted, [R, M]; all by default. The others are left out of what
                follows the last attention.
        """
        cos, sin = self._rope(ctx.positions)
        x = self._embedding(token_ids)
        residual: Tensor | None = None
        for layer in self._layers[:-1]:
            x, residual = layer(x, residual, cos, sin, ctx)
        x, residual = self._layers[-1](x, residual, cos, sin, ctx, rows)
        return self._norm.add(x, residual, ctx.kernels)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden rows [R, M] -> float32 [R, vocab_size], the same on every rank."""
        return self._head(hidden)


def _layer_slots(config: ModelConfig, layer: DecoderLayer) -> dict[str, WeightSlot]:
    """Names without the layer's prefix."""
    width = (config.hidden_size,)
    slots = {
        "input_layernorm.weight": WeightSlot(shape=width, load=layer.input_norm.load),
        "post_attention_layernorm.weight": WeightSlot(shape=width, load=layer.mlp_norm.load),
    }
    slots |= {f"self_attn.{name}": slot for name, slot in _attention_slots(config, layer.attention).items()}
    mlp = layer.mlp
    inner = _moe_slots(config, mlp) if isinstance(mlp, Moe) else _mlp_slots(config, mlp)
    return slots | {f"mlp.{name}": slot for name, slot in inner.items()}


def _attention_slots(config: ModelConfig, attention: Attention) -> dict[str, WeightSlot]:
    width, dim = config.hidden_size, config.head_dim
    rows = {"q": config.num_heads * dim, "k": config.num_kv_heads * dim, "v": config.num_kv_heads * dim}
    slots: dict[str, WeightSlot] = {}
    for part, size in rows.items():
        load = partial(attention.qkv.load, part)
        slots |= _linear_slots(f"{part}_proj", (size, width), load, bias=config.attention_bias)
    slots |= _linear_slots("o_proj", (width, rows["q"]), attention.output.load, bias=config.output_bias)
    for name, norm in (("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
        if norm is not None:
            slots[f"{name}.weight"] = WeightSlot(shape=(dim,), load=norm.load)
    return slots


def _mlp_slots(config: ModelConfig, mlp: Mlp) -> dict[str, WeightSlot]:
    width, inner = config.hidden_size, config.intermediate_size
    slots = _linear_slots("down_proj", (width, inner), mlp.down.load, bias=config.mlp_bias)
    for part in ("gate", "up"):
        load = partial(mlp.gate_up.load, part)
        slots |= _linear_slots(f"{part}_proj", (inner, width), load, bias=config.mlp_bias)
    return slots


def _moe_slots(config: ModelConfig, moe: Moe) -> dict[str, WeightSlot]:
    assert config.moe is not None
    width, inner = config.hidden_size, config.moe.intermediate_size
    router = partial(moe.router.load, "only", "weight")
    slots = {"gate.weight": WeightSlot(shape=(config.moe.num_experts, width), load=router)}
    for expert in range(config.moe.num_experts):
        for part in ("gate", "up", "down"):
            shape = (width, inner) if part == "down" else (inner, width)
            load = partial(moe.load_expert, expert, part)
            slots[f"experts.{expert}.{part}_proj.weight"] = WeightSlot(shape=shape, load=load)
    return slots


def _linear_slots(name: str, shape: tuple[int, int], load: LinearLoad, *, bias: bool) -> dict[str, WeightSlot]:
    """Weight and, if there is one, bias; `load` takes which of the two and the tensor."""
    slots = {f"{name}.weight": WeightSlot(shape=shape, load=partial(load, "weight"))}
    if bias:
        slots[f"{name}.bias"] = WeightSlot(shape=shape[:1], load=partial(load, "bias"))
    return slots
