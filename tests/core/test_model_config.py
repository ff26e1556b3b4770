"""Model configs out of config.json. Right values: transformers' configuration files of the same model types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton.core.errors import ModelError
from baton.core.model_config import ModelConfig, MoeConfig
from baton.core.rope_config import RopeKind

# meta-llama/Llama-3.2-1B-Instruct as published, without fields that nothing reads.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}


def small(architecture: str, **more: Any) -> ModelConfig:
    return ModelConfig.from_hf({"architectures": [architecture], **SMALL, **more})


def test_llama() -> None:
    config = ModelConfig.from_hf(LLAMA)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (16, 32, 8, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size) == (2048, 8192, 128256)
    assert (config.rms_norm_eps, config.tie_word_embeddings, config.dtype) == (1e-5, True, "bfloat16")
    assert (config.rope.kind, config.rope.theta, config.rope.rotary_dim) == (RopeKind.LLAMA3, 500000.0, 64)
    assert (config.bos_token_id, config.eos_token_ids) == (128000, (128001, 128008, 128009))
    assert (config.attention_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (False,) * 4
    assert config.moe is None
    assert config.max_context == 131072


def test_generation_config_decides_the_end_tokens() -> None:
    assert ModelConfig.from_hf(LLAMA, {"eos_token_id": 7}).eos_token_ids == (7,)
    assert ModelConfig.from_hf(LLAMA, {"temperature": 0.6}).eos_token_ids == (128001, 128008, 128009)


def test_architecture_may_come_from_the_model_type() -> None:
    assert ModelConfig.from_hf({**LLAMA, "architectures": None}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("architecture", "more", "attention", "output", "mlp", "norm"),
    [
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, True, True, True, False),
        ("MistralForCausalLM", {"attention_bias": True, "sliding_window": None}, False, False, False, False),
        ("Qwen2ForCausalLM", {}, True, False, False, False),
        ("Qwen3ForCausalLM", {}, False, False, False, True),
        ("Qwen3ForCausalLM", {"attention_bias": True, "mlp_bias": True}, True, True, False, True),
        ("Qwen3MoeForCausalLM", {}, False, False, False, True),
    ],
)
def test_biases_and_norms(
    architecture: str, more: dict[str, Any], attention: bool, output: bool, mlp: bool, norm: bool
) -> None:
    config = small(architecture, **more)
    assert (config.attention_bias, config.output_bias, config.mlp_bias) == (attention, output, mlp)
    assert config.qk_norm == norm


def test_head_dim() -> None:
    assert small("LlamaForCausalLM").head_dim == 16
    assert small("LlamaForCausalLM", head_dim=None).head_dim == 16
    assert small("LlamaForCausalLM", head_dim=40).head_dim == 40
    assert small("Qwen3ForCausalLM").head_dim == 128


def test_key_value_heads_default_to_query_heads() -> None:
    assert small("LlamaForCausalLM", num_key_value_heads=None).num_kv_heads == 4


def test_dtype_of_either_style() -> None:
    assert small("LlamaForCausalLM").dtype == "float32"
    assert small("LlamaForCausalLM", torch_dtype="float16").dtype == "float16"
    assert small("LlamaForCausalLM", dtype="bfloat16", torch_dtype="float16").dtype == "bfloat16"


def test_experts() -> None:
    moe = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
    config = small("Qwen3MoeForCausalLM", **moe, decoder_sparse_step=2, mlp_only_layers=[3])
    assert config.moe == MoeConfig(
        num_experts=8,
        top_k=2,
        intermediate_size=32,
        norm_topk_prob=True,
        decoder_sparse_step=2,
        mlp_only_layers=(3,),
    )
    # (layer + 1) % 2 == 0 gives layers 1 and 3; 3 is taken out again.
    assert [config.is_moe_layer(i) for i in range(4)] == [False, True, False, False]
    assert small("Qwen3MoeForCausalLM", num_experts=0).moe is None
    renamed = {**moe, "num_local_experts": moe["num_experts"]}
    del renamed["num_experts"]
    assert small("Qwen3MoeForCausalLM", **renamed).moe == small("Qwen3MoeForCausalLM", **moe).moe


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("MistralForCausalLM", {"sliding_window": None}),
        ("MistralForCausalLM", {"sliding_window": 4096, "max_position_embeddings": 4096}),
        ("LlamaForCausalLM", {"sliding_window": 8}),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": False}),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 4}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention"] * 4, "sliding_window": None}),
        ("Qwen3MoeForCausalLM", {"sliding_window": 8, "use_sliding_window": False}),
    ],
)
def test_windows_that_never_bite_are_fine(architecture: str, more: dict[str, Any]) -> None:
    assert small(architecture, **more).architecture == architecture


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("MistralForCausalLM", {}),
        ("MistralForCausalLM", {"sliding_window": 4096}),
        ("Qwen2ForCausalLM", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}),
        ("Qwen3ForCausalLM", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
        ("Qwen3MoeForCausalLM", {"sliding_window": 8, "use_sliding_window": True}),
    ],
)
def test_sliding_windows_are_refused(architecture: str, more: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="sliding_"):
        small(architecture, **more)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architecture 'GPT2LMHeadModel' is not supported.*Qwen3Moe",
        ),
        ({"architectures": None, "model_type": "gpt2"}, "architecture 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config 'awq' is not supported"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported.*bfloat16"),
        ({"hidden_size": None}, "an integer 'hidden_size', got None"),
        ({"rms_norm_eps": None}, "a number 'rms_norm_eps', got None"),
        ({"num_hidden_layers": 0}, "num_layers must be between 1"),
        ({"num_key_value_heads": 5}, "num_attention_heads=32 is not a multiple of num_key_value_heads=5"),
        ({"eos_token_id": "</s>"}, "expected token ids, got '</s>'"),
        ({"rope_scaling": {"rope_type": "su"}}, "rope type 'su' is not supported; supported: default, linear"),
    ],
)
def test_refusals_name_what_and_list_what_works(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ModelConfig.from_hf({**LLAMA, **change})


def test_refuses_more_experts_per_token_than_experts() -> None:
    with pytest.raises(ModelError, match="num_experts_per_tok=9 must be 1 to num_experts=8"):
        small("Qwen3MoeForCausalLM", num_experts=8, num_experts_per_tok=9)


def test_fingerprint_is_stable() -> None:
    # Pinned: a change means that caches kept by older versions are no longer recognised.
    assert small("LlamaForCausalLM").fingerprint() == "a1e3c0f42142d45ee9c4b1a4fd731108"


def test_fingerprint_ignores_names_and_token_ids() -> None:
    config = ModelConfig.from_hf(LLAMA)
    other = ModelConfig.from_hf({**LLAMA, "_name_or_path": "x", "eos_token_id": 5, "bos_token_id": None})
    assert config.fingerprint() == other.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 17},
        {"head_dim": 32},
        {"rms_norm_eps": 1e-6},
        {"rope_theta": 10000.0},
        {"rope_scaling": None},
        {"torch_dtype": "float16"},
        {"attention_bias": True},
        {"architectures": ["Qwen2ForCausalLM"]},
    ],
)
def test_fingerprint_sees_what_changes_kv(change: dict[str, Any]) -> None:
    assert ModelConfig.from_hf({**LLAMA, **change}).fingerprint() != ModelConfig.from_hf(LLAMA).fingerprint()


def test_fingerprint_counts_the_dtype_it_is_served_in() -> None:
    config = ModelConfig.from_hf(LLAMA)
    assert config.fingerprint("float32") == replace(config, dtype="float32").fingerprint()
    assert config.fingerprint("float32") != config.fingerprint()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": 5}, "architectures must be a list, got 5"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"layer_types": 5}, "layer_types must be a list"),
        ({"num_hidden_layers": 10**9}, "num_layers must be at most 4096"),
        ({"vocab_size": 10**12}, "vocab_size must be between 1 and 2147483647"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be between 0 and 1"),
    ],
)
def test_a_damaged_config_is_refused_by_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        ModelConfig.from_hf({**LLAMA, **changes})
