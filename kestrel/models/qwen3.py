"""Qwen3 (dense): queries and keys are normed per head before RoPE.

Defaults are those of transformers' Qwen3Config.
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig, LayerKind
from kestrel.models.family import LLAMA_LAYER_NAMES, Family
from kestrel.models.fields import Fields, default
from kestrel.models.qwen2 import read_windows
from kestrel.models.readers import read_attention_scale, read_sizes
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Qwen3 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(32), head_dim=default(128))
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(32768))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    return DecoderConfig(
        model_type="qwen3",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.fixed("mlp_bias", False),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        qk_norm=fields.fixed("qk_norm", "head"),
        layers=tuple(LayerKind(each, rope) for each in read_windows(fields, sizes.num_layers)),
    )


FAMILY = Family(
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    read=read,
    layer_names={
        **LLAMA_LAYER_NAMES,
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    },
)
