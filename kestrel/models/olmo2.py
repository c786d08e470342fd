"""OLMo 2: norms after the blocks alone, and of queries and keys over all heads at once.

Defaults are those of transformers' Olmo2Config (arXiv:2501.00656).
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig
from kestrel.models.family import PROJECTION_NAMES, Family
from kestrel.models.fields import Fields, default
from kestrel.models.readers import read_attention_scale, read_sizes, read_uniform_layers
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of an OLMo 2 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields)
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(2048))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    return DecoderConfig(
        model_type="olmo2",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-5)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.fixed("mlp_bias", False),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        qk_norm=fields.fixed("qk_norm", "projection"),
        layers=read_uniform_layers(fields, sizes.num_layers, None, rope),
    )


FAMILY = Family(
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM", "Olmo2Model"),
    read=read,
    layer_names={
        **PROJECTION_NAMES,
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
        "attention_output_norm": "post_attention_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    },
)
