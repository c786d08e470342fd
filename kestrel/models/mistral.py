"""Mistral 7B, Nemo, Small and Ministral 8B: Llama with a window of attention in every layer.

Defaults are those of transformers' MistralConfig. Without ``sliding_window`` the window is 4096;
null, as the later releases have it, means none.
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default
from kestrel.models.readers import read_attention_scale, read_sizes, read_uniform_layers
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Mistral config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(8))
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(131072))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    window = fields.integer_or_none("sliding_window", default(4096))
    return DecoderConfig(
        model_type="mistral",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.fixed("attention_bias", False),
        mlp_bias=fields.fixed("mlp_bias", False),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        layers=read_uniform_layers(fields, sizes.num_layers, window, rope),
    )


FAMILY = Family(
    model_type="mistral",
    architectures=("MistralForCausalLM", "MistralModel"),
    read=read,
)
