"""config.json files in the shape of public models of model_type llama."""

from __future__ import annotations


def _config(**fields: object) -> dict[str, object]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **fields}


def _scaling(factor: float, key: str = "rope_type") -> dict[str, object]:
    return {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        key: "llama3",
    }


PUBLIC_CONFIGS: dict[str, dict[str, object]] = {
    "llama-1-7b": _config(
        bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=4096,
        intermediate_size=11008, initializer_range=0.02, max_sequence_length=2048,
        num_attention_heads=32, num_hidden_layers=32, pad_token_id=0, rms_norm_eps=1e-06,
        tie_word_embeddings=False, torch_dtype="float16", transformers_version="4.27.0.dev0",
        use_cache=True, vocab_size=32000,
    ),
    "llama-2-70b": _config(
        _name_or_path="meta-llama/Llama-2-70b-hf", bos_token_id=1, eos_token_id=2,
        hidden_act="silu", hidden_size=8192, initializer_range=0.02, intermediate_size=28672,
        max_position_embeddings=4096, num_attention_heads=64, num_hidden_layers=80,
        num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-05, rope_scaling=None,
        tie_word_embeddings=False, torch_dtype="float16", transformers_version="4.32.0.dev0",
        use_cache=True, vocab_size=32000,
    ),
    "code-llama-7b": _config(
        bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=4096,
        initializer_range=0.02, intermediate_size=11008, max_position_embeddings=16384,
        num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=32, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=1000000, tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.33.0.dev0", use_cache=True,
        vocab_size=32016,
    ),
    "llama-3-8b": _config(
        attention_bias=False, attention_dropout=0.0, bos_token_id=128000, eos_token_id=128001,
        hidden_act="silu", hidden_size=4096, initializer_range=0.02, intermediate_size=14336,
        max_position_embeddings=8192, num_attention_heads=32, num_hidden_layers=32,
        num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-05, rope_scaling=None,
        rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="bfloat16",
        transformers_version="4.40.0.dev0", use_cache=True, vocab_size=128256,
    ),
    "llama-3.1-8b": _config(
        attention_bias=False, attention_dropout=0.0, bos_token_id=128000,
        eos_token_id=[128001, 128008, 128009], hidden_act="silu", hidden_size=4096,
        initializer_range=0.02, intermediate_size=14336, max_position_embeddings=131072,
        mlp_bias=False, num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8,
        pretraining_tp=1, rms_norm_eps=1e-05, rope_scaling=_scaling(8.0), rope_theta=500000.0,
        tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.42.3",
        use_cache=True, vocab_size=128256,
    ),
    "llama-3.2-1b": _config(
        attention_bias=False, attention_dropout=0.0, bos_token_id=128000, eos_token_id=128001,
        head_dim=64, hidden_act="silu", hidden_size=2048, initializer_range=0.02,
        intermediate_size=8192, max_position_embeddings=131072, mlp_bias=False,
        num_attention_heads=32, num_hidden_layers=16, num_key_value_heads=8, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling=_scaling(32.0), rope_theta=500000.0,
        tie_word_embeddings=True, torch_dtype="bfloat16", transformers_version="4.45.0.dev0",
        use_cache=True, vocab_size=128256,
    ),
    "llama-3.2-1b, saved by transformers 5": _config(
        attention_bias=False, attention_dropout=0.0, bos_token_id=128000, dtype="bfloat16",
        eos_token_id=128001, head_dim=64, hidden_act="silu", hidden_size=2048,
        initializer_range=0.02, intermediate_size=8192, max_position_embeddings=131072,
        mlp_bias=False, num_attention_heads=32, num_hidden_layers=16, num_key_value_heads=8,
        pad_token_id=None, pretraining_tp=1, rms_norm_eps=1e-05,
        rope_parameters={**_scaling(32.0), "rope_theta": 500000.0}, tie_word_embeddings=True,
        transformers_version="5.24.0", use_cache=True, vocab_size=128256,
    ),
    "tiny-llama-1.1b": _config(
        bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=2048,
        initializer_range=0.02, intermediate_size=5632, max_position_embeddings=2048,
        num_attention_heads=32, num_hidden_layers=22, num_key_value_heads=4, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling=None, tie_word_embeddings=False, torch_dtype="float32",
        transformers_version="4.31.0.dev0", use_cache=True, vocab_size=32000,
    ),
    "smollm2-1.7b": _config(
        attention_bias=False, attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
        hidden_act="silu", hidden_size=2048, initializer_range=0.02, intermediate_size=8192,
        max_position_embeddings=8192, mlp_bias=False, num_attention_heads=32,
        num_hidden_layers=24, num_key_value_heads=32, pad_token_id=2, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=130000, tie_word_embeddings=True,
        torch_dtype="bfloat16", transformers_version="4.42.3", use_cache=True, vocab_size=49152,
        is_llama_config=True, rope_interleaved=False,
        **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    ),
    "deepseek-coder-6.7b": _config(
        bos_token_id=32013, eos_token_id=32014, hidden_act="silu", hidden_size=4096,
        initializer_range=0.02, intermediate_size=11008, max_position_embeddings=16384,
        num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=32, pretraining_tp=1,
        rms_norm_eps=1e-06, rope_scaling={"factor": 4.0, "type": "linear"}, rope_theta=100000,
        tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.33.1",
        use_cache=True, vocab_size=32256,
    ),
    "yi-34b": _config(
        attention_bias=False, bos_token_id=1, eos_token_id=2, hidden_act="silu",
        hidden_size=7168, initializer_range=0.02, intermediate_size=20480,
        max_position_embeddings=4096, num_attention_heads=56, num_hidden_layers=60,
        num_key_value_heads=8, pad_token_id=0, pretraining_tp=1, rms_norm_eps=1e-05,
        rope_scaling=None, rope_theta=5000000.0, tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.36.2", use_cache=True, vocab_size=64000,
    ),
    "vicuna-13b-16k": _config(
        _name_or_path="lmsys/vicuna-13b-v1.5-16k", bos_token_id=1, eos_token_id=2,
        hidden_act="silu", hidden_size=5120, initializer_range=0.02, intermediate_size=13824,
        max_position_embeddings=4096, max_sequence_length=16384, num_attention_heads=40,
        num_hidden_layers=40, num_key_value_heads=40, pad_token_id=0, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling={"factor": 4.0, "type": "linear"},
        tie_word_embeddings=False, torch_dtype="float16", transformers_version="4.31.0",
        use_cache=True, vocab_size=32000,
    ),
    "deepseek-llm-7b": _config(
        _name_or_path="deepseek-ai/deepseek-llm-7b-base", bos_token_id=100000,
        eos_token_id=100001, hidden_act="silu", hidden_size=4096, initializer_range=0.02,
        intermediate_size=11008, max_position_embeddings=4096, num_attention_heads=32,
        num_hidden_layers=30, num_key_value_heads=32, pretraining_tp=1, rms_norm_eps=1e-06,
        rope_scaling=None, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="bfloat16",
        transformers_version="4.33.1", use_cache=True, vocab_size=102400,
    ),
    "granite-3b-code": _config(
        attention_bias=True, attention_dropout=0.1, bos_token_id=0, eos_token_id=0,
        hidden_act="silu", hidden_size=2560, initializer_range=0.02, intermediate_size=10240,
        max_position_embeddings=2048, mlp_bias=True, num_attention_heads=32,
        num_hidden_layers=32, num_key_value_heads=32, pad_token_id=0, pretraining_tp=1,
        rms_norm_eps=1e-05, rope_scaling=None, rope_theta=10000, tie_word_embeddings=True,
        torch_dtype="bfloat16", transformers_version="4.38.2", use_cache=True, vocab_size=49152,
    ),
    "explicit head_dim": _config(
        hidden_size=5120, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
        intermediate_size=14336, num_hidden_layers=40, vocab_size=131072, rms_norm_eps=1e-05,
        max_position_embeddings=1024000, rope_theta=1000000.0, hidden_act="silu",
    ),
    "few fields": _config(
        vocab_size=512, hidden_size=64, intermediate_size=172, num_hidden_layers=2,
        num_attention_heads=8,
    ),
}  # fmt: skip
