"""Gemma 2: norms around each block, capped scores and logits, a window in every second layer.

Defaults are those of transformers' Gemma2Config (arXiv:2408.00118). A cap of null is none.
"""

from __future__ import annotations

from types import MappingProxyType

from kestrel.models.config import DecoderConfig, LayerKind
from kestrel.models.family import LLAMA_LAYER_NAMES, Family
from kestrel.models.fields import Fields, default
from kestrel.models.gemma import read_activation, read_common
from kestrel.models.readers import (
    FULL,
    SLIDING,
    read_attention_scale,
    read_layer_types,
    read_sizes,
    windows_of,
)
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY", "SANDWICH"]

#: Norms before and after each block; post_attention_layernorm is of the attention's output.
SANDWICH = MappingProxyType(
    {
        **LLAMA_LAYER_NAMES,
        "attention_output_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    }
)


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Gemma 2 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(4), head_dim=default(256))
    context = fields.integer("max_position_embeddings", default(8192))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    read_activation(fields, "hidden_activation", "hidden_act")
    window = fields.integer_or_none("sliding_window", default(4096))
    # In some of the released files; Gemma2Config does not read it.
    fields.neutral("sliding_window_size", (window,), "another window than sliding_window")
    kinds = default([FULL if i % 2 else SLIDING for i in range(sizes.num_layers)])
    windows = windows_of(read_layer_types(fields, sizes.num_layers, kinds), window)
    scalar = fields.number("query_pre_attn_scalar", default(256))
    return DecoderConfig(
        model_type="gemma2",
        **sizes._asdict(),
        **read_common(fields, sizes),
        rope=rope,
        max_position_embeddings=context,
        attention_scale=read_attention_scale(fields, "query_pre_attn_scalar", scalar),
        attn_logit_softcapping=fields.number_or_none("attn_logit_softcapping", default(50.0)),
        final_logit_softcapping=fields.number_or_none("final_logit_softcapping", default(30.0)),
        layers=tuple(LayerKind(each, rope) for each in windows),
    )


FAMILY = Family(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM", "Gemma2Model"),
    read=read,
    layer_names=SANDWICH,
)
