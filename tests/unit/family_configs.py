"""config.json files in the shape of public models of each family, and the smallest of each."""

from __future__ import annotations

from unit.llama_configs import PUBLIC_CONFIGS as LLAMA_CONFIGS

__all__ = ["CLASSES", "FAMILY_TENSORS", "PUBLIC", "TINY", "tiny"]

#: model_type -> beginnings of its classes' names in transformers, XForCausalLM and XConfig.
_NAMES = "Llama Mistral Qwen2 Qwen3 SmolLM3 Gemma Gemma2 Olmo2 Granite Phi3".split()
CLASSES = {name.lower(): (name, name) for name in _NAMES}
CLASSES["gemma3_text"] = ("Gemma3", "Gemma3Text")

#: Sizes that no family has a default for; q is 40 columns wide, k and v are 20.
TINY: dict[str, object] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def tiny(model_type: str, **changes: object) -> dict[str, object]:
    """A config.json of two layers, with two kv heads and a head_dim of 10 (S04)."""
    full = {"model_type": model_type, **TINY, "num_key_value_heads": 2, "head_dim": 10, **changes}
    return {key: value for key, value in full.items() if value is not ...}


_LINEARS = {
    "self_attn.q_proj.weight": (40, 32),
    "self_attn.k_proj.weight": (20, 32),
    "self_attn.v_proj.weight": (20, 32),
    "self_attn.o_proj.weight": (32, 40),
    "mlp.gate_proj.weight": (48, 32),
    "mlp.up_proj.weight": (48, 32),
    "mlp.down_proj.weight": (32, 48),
}
_LLAMA = {
    **_LINEARS,
    "input_layernorm.weight": (32,),
    "post_attention_layernorm.weight": (32,),
}
_GEMMA2 = {
    **_LLAMA,
    "pre_feedforward_layernorm.weight": (32,),
    "post_feedforward_layernorm.weight": (32,),
}
_HEAD_NORMS = {"self_attn.q_norm.weight": (10,), "self_attn.k_norm.weight": (10,)}
#: model_type -> tensors of a layer of ``tiny`` and their shapes, as the family's class saves them.
FAMILY_TENSORS: dict[str, dict[str, tuple[int, ...]]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": {
        **_LLAMA,
        "self_attn.q_proj.bias": (40,),
        "self_attn.k_proj.bias": (20,),
        "self_attn.v_proj.bias": (20,),
    },
    "qwen3": {**_LLAMA, **_HEAD_NORMS},
    "smollm3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3_text": {**_GEMMA2, **_HEAD_NORMS},
    "olmo2": {
        **_LINEARS,
        "self_attn.q_norm.weight": (40,),
        "self_attn.k_norm.weight": (20,),
        "post_attention_layernorm.weight": (32,),
        "post_feedforward_layernorm.weight": (32,),
    },
    "granite": _LLAMA,
    "phi3": {
        "self_attn.qkv_proj.weight": (80, 32),
        "self_attn.o_proj.weight": (32, 40),
        "mlp.gate_up_proj.weight": (96, 32),
        "mlp.down_proj.weight": (32, 48),
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
    },
}


def _config(model_type: str, **fields: object) -> dict[str, object]:
    start = CLASSES[model_type][0]
    return {"architectures": [f"{start}ForCausalLM"], "model_type": model_type, **fields}


_MISTRAL = dict(
    bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=4096, initializer_range=0.02,
    intermediate_size=14336, max_position_embeddings=32768, num_attention_heads=32,
    num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-05, tie_word_embeddings=False,
    torch_dtype="bfloat16", use_cache=True,
)  # fmt: skip
_QWEN = dict(
    attention_dropout=0.0, bos_token_id=151643, eos_token_id=151645, hidden_act="silu",
    initializer_range=0.02, max_position_embeddings=32768, rms_norm_eps=1e-06,
    rope_theta=1000000.0, torch_dtype="bfloat16", use_cache=True, use_sliding_window=False,
    vocab_size=151936,
)  # fmt: skip
_GEMMA = dict(
    attention_bias=False, attention_dropout=0.0, bos_token_id=2, eos_token_id=1, head_dim=256,
    initializer_range=0.02, max_position_embeddings=8192, pad_token_id=0, rms_norm_eps=1e-06,
    rope_theta=10000.0, torch_dtype="bfloat16", use_cache=True, vocab_size=256000,
)  # fmt: skip
_GEMMA_2 = dict(
    _GEMMA, attn_logit_softcapping=50.0, cache_implementation="hybrid",
    final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh", sliding_window=4096, transformers_version="4.42.4",
)  # fmt: skip
_GEMMA_3 = dict(
    _GEMMA, attn_logit_softcapping=None, eos_token_id=[1, 106], final_logit_softcapping=None,
    hidden_activation="gelu_pytorch_tanh", max_position_embeddings=32768, num_attention_heads=4,
    num_key_value_heads=1, query_pre_attn_scalar=256, rope_local_base_freq=10000,
    rope_scaling=None, rope_theta=1000000, sliding_window=512, vocab_size=262144,
)  # fmt: skip
_GRANITE = dict(
    attention_bias=False, attention_dropout=0.1, bos_token_id=0, embedding_multiplier=12.0,
    eos_token_id=0, hidden_act="silu", initializer_range=0.02, mlp_bias=False,
    num_attention_heads=32, num_hidden_layers=40, num_key_value_heads=8, pad_token_id=0,
    residual_multiplier=0.22, rms_norm_eps=1e-05, rope_scaling=None, tie_word_embeddings=True,
    torch_dtype="bfloat16", use_cache=True,
)  # fmt: skip
_PHI_3 = dict(
    attention_dropout=0.0, bos_token_id=1, embd_pdrop=0.0, eos_token_id=32000, hidden_act="silu",
    hidden_size=3072, initializer_range=0.02, intermediate_size=8192,
    max_position_embeddings=131072, num_attention_heads=32, num_hidden_layers=32,
    num_key_value_heads=32, original_max_position_embeddings=4096, pad_token_id=32000,
    resid_pdrop=0.0, rms_norm_eps=1e-05, rope_theta=10000.0, tie_word_embeddings=False,
    torch_dtype="bfloat16", use_cache=True, vocab_size=32064,
    auto_map={
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
    },
)  # fmt: skip


def _longrope(pairs: int, name: str = "longrope") -> dict[str, object]:
    """A block in the shape of the released ones, with growing factors."""
    short, long = ([1 + top * i / pairs for i in range(pairs)] for top in (2, 60))
    return {"long_factor": long, "short_factor": short, "type": name}


#: Name of a model -> config.json in its shape.
PUBLIC: dict[str, dict[str, object]] = {
    **LLAMA_CONFIGS,
    "mistral-7b-v0.1": _config(
        "mistral", **_MISTRAL, rope_theta=10000.0, sliding_window=4096,
        transformers_version="4.34.0.dev0", vocab_size=32000,
    ),
    "mistral-7b-v0.3": _config(
        "mistral", **_MISTRAL, attention_dropout=0.0, rope_theta=1000000.0, sliding_window=None,
        transformers_version="4.42.0.dev0", vocab_size=32768,
    ),
    "mistral-nemo-12b": _config(
        "mistral", **{
            **_MISTRAL, "head_dim": 128, "hidden_size": 5120, "num_hidden_layers": 40,
            "max_position_embeddings": 1024000, "rope_theta": 1000000.0, "sliding_window": None,
            "vocab_size": 131072, "attention_dropout": 0.0,
        },
    ),
    "qwen1.5-0.5b": _config(
        "qwen2", **_QWEN, hidden_size=1024, intermediate_size=2816, max_window_layers=21,
        num_attention_heads=16, num_hidden_layers=24, num_key_value_heads=16,
        sliding_window=32768, tie_word_embeddings=True, transformers_version="4.37.0",
    ),
    "qwen2.5-0.5b": _config(
        "qwen2", **_QWEN, hidden_size=896, intermediate_size=4864, max_window_layers=24,
        num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2, sliding_window=32768,
        tie_word_embeddings=True, transformers_version="4.40.1", use_mrope=False,
    ),
    "deepseek-r1-distill-qwen-1.5b": _config(
        "qwen2", **{
            **_QWEN, "hidden_size": 1536, "intermediate_size": 8960, "max_window_layers": 21,
            "max_position_embeddings": 131072, "num_attention_heads": 12, "num_hidden_layers": 28,
            "num_key_value_heads": 2, "rope_theta": 10000, "sliding_window": 4096,
            "tie_word_embeddings": False, "use_mrope": False,
        },
    ),
    "qwen3-0.6b": _config(
        "qwen3", **{
            **_QWEN, "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
            "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
            "tie_word_embeddings": True, "transformers_version": "4.51.0",
        },
    ),
    "smollm3-3b": _config(
        "smollm3", attention_bias=False, attention_dropout=0.0, bos_token_id=None,
        eos_token_id=128012, hidden_act="silu", hidden_size=2048, initializer_range=0.02,
        intermediate_size=11008, layer_types=["full_attention"] * 36,
        max_position_embeddings=65536, max_window_layers=28, mlp_bias=False,
        no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9, num_attention_heads=16,
        num_hidden_layers=36, num_key_value_heads=4, pad_token_id=128004, pretraining_tp=2,
        rms_norm_eps=1e-06, rope_scaling=None, rope_theta=5000000.0, sliding_window=None,
        torch_dtype="bfloat16", transformers_version="4.54.0.dev0", use_cache=False,
        use_sliding_window=False, vocab_size=128256,
    ),
    "gemma-2b": _config(
        "gemma", **_GEMMA, hidden_act="gelu", hidden_size=2048, intermediate_size=16384,
        num_attention_heads=8, num_hidden_layers=18, num_key_value_heads=1, rope_scaling=None,
        transformers_version="4.38.0.dev0",
    ),
    "gemma-1.1-7b-it": _config(
        "gemma", **_GEMMA, hidden_act="gelu", hidden_activation="gelu_pytorch_tanh",
        hidden_size=3072, intermediate_size=24576, num_attention_heads=16, num_hidden_layers=28,
        num_key_value_heads=16, rope_scaling=None, transformers_version="4.40.0.dev0",
    ),
    "gemma-2-2b": _config(
        "gemma2", **_GEMMA_2, hidden_size=2304, intermediate_size=9216, num_attention_heads=8,
        num_hidden_layers=26, num_key_value_heads=4, query_pre_attn_scalar=256,
    ),
    "gemma-2-9b": _config(
        "gemma2", **_GEMMA_2, hidden_size=3584, intermediate_size=14336, num_attention_heads=16,
        num_hidden_layers=42, num_key_value_heads=8, query_pre_attn_scalar=256,
        sliding_window_size=4096,
    ),
    "gemma-2-27b": _config(
        "gemma2", **{
            **_GEMMA_2, "head_dim": 128, "hidden_size": 4608, "intermediate_size": 36864,
            "num_attention_heads": 32, "num_hidden_layers": 46, "num_key_value_heads": 16,
            "query_pre_attn_scalar": 144, "_attn_implementation": "eager",
        },
    ),
    "gemma-3-1b-it": _config(
        "gemma3_text", **_GEMMA_3, cache_implementation="hybrid", hidden_size=1152,
        intermediate_size=6912, num_hidden_layers=26, sliding_window_pattern=6,
        transformers_version="4.50.0.dev0",
    ),
    "gemma-3-270m-it": _config(
        "gemma3_text", **_GEMMA_3, _sliding_window_pattern=6, hidden_size=640,
        intermediate_size=2048,
        layer_types=([*["sliding_attention"] * 5, "full_attention"]) * 3, num_hidden_layers=18,
        transformers_version="4.55.0.dev0", use_bidirectional_attention=False,
    ),
    "gemma-3-27b, its text part": _config(
        "gemma3_text", **{
            **_GEMMA_3, "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
            "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 62,
            "num_key_value_heads": 16, "query_pre_attn_scalar": 168, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "vocab_size": 262208,
        },
    ),
    "olmo-2-1b": _config(
        "olmo2", attention_bias=False, attention_dropout=0.0, eos_token_id=100257,
        hidden_act="silu", hidden_size=2048, initializer_range=0.02, intermediate_size=8192,
        max_position_embeddings=4096, num_attention_heads=16, num_hidden_layers=16,
        num_key_value_heads=16, pad_token_id=100277, rms_norm_eps=1e-06, rope_scaling=None,
        rope_theta=500000, tie_word_embeddings=False, torch_dtype="float32",
        transformers_version="4.51.3", use_cache=True, vocab_size=100352,
    ),
    "granite-3.0-2b": _config(
        "granite", **_GRANITE, attention_multiplier=0.015625, hidden_size=2048,
        intermediate_size=8192, logits_scaling=8.0, max_position_embeddings=4096,
        rope_theta=10000, transformers_version="4.45.0.dev0", vocab_size=49155,
    ),
    "granite-3.3-8b": _config(
        "granite", **_GRANITE, attention_multiplier=0.0078125, hidden_size=4096,
        intermediate_size=12800, logits_scaling=16.0, max_position_embeddings=131072,
        rope_theta=10000000.0, transformers_version="4.49.0", vocab_size=49159,
    ),
    "phi-3-mini-4k": _config(
        "phi3", **{
            **_PHI_3, "max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047,
            "attention_bias": False, "transformers_version": "4.40.2",
        },
    ),
    # The first release has the length at the top level alone, where transformers 5 misses it.
    "phi-3-mini-128k, its first name of the type": _config(
        "phi3", **_PHI_3, sliding_window=262144,
        rope_scaling={**_longrope(48, "su"), "original_max_position_embeddings": 4096},
    ),
    "phi-3.5-mini": _config(
        "phi3", **_PHI_3, attention_bias=False, rope_scaling=_longrope(48), sliding_window=262144,
        transformers_version="4.43.3",
    ),
    "phi-4": _config(
        "phi3", **{
            **_PHI_3, "auto_map": None, "hidden_size": 5120, "intermediate_size": 17920,
            "max_position_embeddings": 16384, "num_attention_heads": 40, "num_hidden_layers": 40,
            "num_key_value_heads": 10, "original_max_position_embeddings": 16384,
            "rope_theta": 250000, "rope_scaling": None, "sliding_window": None,
            "vocab_size": 100352, "transformers_version": "4.47.0",
        },
    ),
    "phi-4-mini": _config(
        "phi3", **{
            **_PHI_3, "attention_bias": False, "full_attn_mod": 1, "interpolate_factor": 1,
            "lm_head_bias": False, "mlp_bias": False, "num_attention_heads": 24,
            "num_key_value_heads": 8, "partial_rotary_factor": 0.75, "sliding_window": 262144,
            "rope_scaling": _longrope(48), "tie_word_embeddings": True, "vocab_size": 200064,
            "transformers_version": "4.45.0",
            "auto_map": {**_PHI_3["auto_map"], "AutoTokenizer": "Xenova/gpt-4o"},
        },
    ),
}  # fmt: skip
