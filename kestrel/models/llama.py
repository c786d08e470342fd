"""Llama 1, 2, 3, 3.1, 3.2, 3.3, Code Llama, TinyLlama, SmolLM, SmolLM2, Yi, DeepSeek LLM.

Defaults are those of transformers' LlamaConfig.
"""

from __future__ import annotations

from kestrel.models.checks import shorten
from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default
from kestrel.models.readers import read_attention_scale, read_sizes, read_uniform_layers
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Llama config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields)
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = read_context(fields)
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    return DecoderConfig(
        model_type="llama",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.flag("mlp_bias", default(False)),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        layers=read_uniform_layers(fields, sizes.num_layers, None, rope),
    )


def read_context(fields: Fields) -> int:
    """``max_position_embeddings``; notes another ``max_sequence_length``.

    The first Llama conversions carry both keys; transformers reads the former alone.
    """
    limit = fields.integer("max_position_embeddings", default(2048))
    other = fields.take("max_sequence_length")
    if other is not None and other != limit:
        fields.notes.append(
            f"max_sequence_length is {shorten(other)}, but max_position_embeddings "
            f"({limit}, {fields.sources['max_position_embeddings']}) decides, as in transformers"
        )
    return limit


FAMILY = Family(
    model_type="llama",
    # LlamaModel: the decoder saved alone; LLaMAForCausalLM: the spelling of the first conversions.
    architectures=("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"),
    read=read,
    # transformers up to 4.30 saved this buffer; it follows from rope_theta and head_dim.
    skipped=("model.layers.*.self_attn.rotary_emb.inv_freq",),
)
