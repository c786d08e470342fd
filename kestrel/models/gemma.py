"""Gemma and CodeGemma: scaled embeddings, norms that multiply by 1 + w, GeGLU.

Defaults are those of transformers' GemmaConfig. What the later Gemmas share stands here too.
"""

from __future__ import annotations

import math

import numpy as np

from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default, implied
from kestrel.models.readers import (
    Sizes,
    read_attention_scale,
    read_sizes,
    read_uniform_layers,
)
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY", "read_activation", "read_common"]

GELU = "gelu_pytorch_tanh"


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Gemma config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(16), head_dim=default(256))
    context = fields.integer("max_position_embeddings", default(8192))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    # The official releases say "gelu" and were trained with the tanh form: so GemmaConfig reads it.
    read_activation(fields, "hidden_act", "hidden_activation", (GELU, "gelu"))
    return DecoderConfig(
        model_type="gemma",
        **sizes._asdict(),
        **read_common(fields, sizes),
        rope=rope,
        max_position_embeddings=context,
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        layers=read_uniform_layers(fields, sizes.num_layers, None, rope),
    )


def read_activation(
    fields: Fields, key: str, unread: str, spellings: tuple[str, ...] = (GELU,)
) -> None:
    """Check that ``key`` is GELU's tanh form, and so is ``unread``, which the class ignores."""
    fields.choice(key, spellings, default(GELU))
    fields.neutral(unread, (GELU,), f"another activation than {key}")
    fields.sources["hidden_act"] = f"{key}, {fields.sources[key]}"


def read_common(fields: Fields, sizes: Sizes) -> dict[str, object]:
    """Fields of DecoderConfig that all Gemmas read alike.

    Embeddings are multiplied by sqrt(hidden_size), a float32 value in transformers too.
    """
    multiplier = float(np.float32(math.sqrt(sizes.hidden_size)))
    by = implied(multiplier, "hidden_size (hidden_size ** 0.5)")
    return {
        "hidden_act": GELU,
        "rms_norm_eps": fields.number("rms_norm_eps", default(1e-6)),
        "norm_offset": fields.fixed("norm_offset", 1.0),
        "embedding_multiplier": fields.record("embedding_multiplier", by),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", default(True)),
        "attention_bias": fields.flag("attention_bias", default(False)),
        "mlp_bias": fields.fixed("mlp_bias", False),
    }


FAMILY = Family(
    model_type="gemma",
    architectures=("GemmaForCausalLM", "GemmaModel"),
    read=read,
)
