"""Phi-3, 3.5 and 4: Llama with fused projections, longrope, and RoPE over a part of each head.

Defaults are those of transformers' Phi3Config. ``generate`` of the class drops the cache when a
sequence grows past the original length, and computes all of it anew with the long factors: so does
a sequence here. Phi-3-small and the mixtures of experts have model_types of their own.
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default
from kestrel.models.readers import read_attention_scale, read_sizes, read_uniform_layers
from kestrel.models.rope_fields import RopeRules, parse_rope

__all__ = ["FAMILY"]

#: Phi3Config renames the types of the first conversions, and has a field of its own for the length.
_ROPE = RopeRules(
    types=("default", "longrope"),
    aliases={"su": "longrope", "yarn": "longrope"},
    is_partial=True,
    original=default(4096),
)
#: The released folders bring the files that these classes had before transformers did.
_CODE = (
    "configuration_phi3.Phi3Config",
    "modeling_phi3.Phi3ForCausalLM",
    "modeling_phi3.Phi3Model",
)


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Phi-3 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields)
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(4096))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context, _ROPE)
    window = fields.integer_or_none("sliding_window", default(None))
    read_unused(fields)
    return DecoderConfig(
        model_type="phi3",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-5)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.fixed("attention_bias", False),
        mlp_bias=fields.fixed("mlp_bias", False),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        rope_restarts=rope.type == "longrope" and fields.fixed("rope_restarts", True),
        layers=read_uniform_layers(fields, sizes.num_layers, window, rope),
    )


def read_unused(fields: Fields) -> None:
    """Keys of the released files that the class does not have, or that act in training alone."""
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        fields.neutral(key, (False,), "biases")
    fields.neutral("full_attn_mod", (1,), "layers with another window")
    fields.neutral("interpolate_factor", (1,), "scaled positions")
    for key in ("resid_pdrop", "embd_pdrop"):
        fields.take(key)
    fields.accept_code(_CODE)


FAMILY = Family(
    model_type="phi3",
    architectures=("Phi3ForCausalLM", "Phi3Model"),
    read=read,
    layer_names={
        "input_norm": "input_layernorm",
        "q_proj": "self_attn.qkv_proj",
        "k_proj": "self_attn.qkv_proj",
        "v_proj": "self_attn.qkv_proj",
        "o_proj": "self_attn.o_proj",
        "gate_proj": "mlp.gate_up_proj",
        "up_proj": "mlp.gate_up_proj",
        "down_proj": "mlp.down_proj",
        "mlp_norm": "post_attention_layernorm",
    },
)
