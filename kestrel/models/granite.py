"""Granite 3 (dense): Llama with multipliers on embeddings, scores, blocks and logits.

Defaults are those of transformers' GraniteConfig. ``attention_multiplier`` stands in the place of
head_dim ** -0.5, which is not applied, not even when the key is absent.
"""

from __future__ import annotations

import numpy as np

from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fallback, Fields, default
from kestrel.models.readers import read_sizes, read_uniform_layers
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Granite config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields)
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(2048))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    scale = float(np.float32(fields.number("attention_multiplier", default(1.0))))
    source = f"attention_multiplier, {fields.sources['attention_multiplier']}"
    return DecoderConfig(
        model_type="granite",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.flag("mlp_bias", default(False)),
        attention_scale=fields.record("attention_scale", Fallback(scale, source)),
        embedding_multiplier=fields.number("embedding_multiplier", default(1.0)),
        residual_multiplier=fields.number("residual_multiplier", default(1.0)),
        logits_scaling=fields.number("logits_scaling", default(1.0)),
        layers=read_uniform_layers(fields, sizes.num_layers, None, rope),
    )


FAMILY = Family(
    model_type="granite",
    architectures=("GraniteForCausalLM", "GraniteModel"),
    read=read,
)
