"""Llama 1, 2, 3, 3.1, 3.2, 3.3, Code Llama, TinyLlama, SmolLM, SmolLM2, Yi, DeepSeek LLM.

Defaults are those of transformers' LlamaConfig. The sizes that shape the weights have none here:
a config.json without them is cut or foreign, and a 7B model is no guess for it.
"""

from __future__ import annotations

from kestrel.models.checks import MAX_LAYERS, default_attention_scale
from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default, implied
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Llama config.json. Raises ConfigError naming the field."""
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", implied(num_heads, "num_attention_heads"))
    head_dim = fields.head_dim(hidden_size, num_heads)
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    fields.full_attention(num_layers)
    scale = implied(default_attention_scale(head_dim), "head_dim (head_dim ** -0.5)")
    return DecoderConfig(
        model_type="llama",
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=parse_rope(fields, head_dim, default(10000.0)),
        max_position_embeddings=fields.context_limit(default(2048)),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.flag("mlp_bias", default(False)),
        attention_scale=fields.record("attention_scale", scale),
    )


FAMILY = Family(
    model_type="llama",
    # LlamaModel: the decoder saved alone; LLaMAForCausalLM: the spelling of the first conversions.
    architectures=("LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"),
    read=read,
    # transformers up to 4.30 saved this buffer; it follows from rope_theta and head_dim.
    skipped=("model.layers.*.self_attn.rotary_emb.inv_freq",),
)
