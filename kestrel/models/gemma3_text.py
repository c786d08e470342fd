"""Gemma 3 (text): five layers with a window to one that sees all, each kind with a RoPE of its own.

Defaults are those of transformers' Gemma3TextConfig (arXiv:2503.19786).
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig, LayerKind
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default, implied
from kestrel.models.gemma import read_activation, read_common
from kestrel.models.gemma2 import SANDWICH
from kestrel.models.readers import (
    FULL,
    SLIDING,
    read_attention_scale,
    read_layer_types,
    read_sizes,
    windows_of,
)
from kestrel.models.rope_fields import parse_layer_ropes

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Gemma 3 text config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(4), head_dim=default(256))
    context = fields.integer("max_position_embeddings", default(131072))
    ropes = parse_layer_ropes(
        fields, sizes.head_dim, default(1000000.0), default(10000.0), context
    )
    read_activation(fields, "hidden_activation", "hidden_act")
    # Gemma3Attention does not pass it on: a model trained with it would run without.
    fields.neutral("attn_logit_softcapping", (), "capped scores")
    kinds = read_kinds(fields, sizes.num_layers)
    windows = windows_of(kinds, fields.integer_or_none("sliding_window", default(4096)))
    scalar = fields.number("query_pre_attn_scalar", default(256))
    return DecoderConfig(
        model_type="gemma3_text",
        **sizes._asdict(),
        **read_common(fields, sizes),
        rope=ropes[FULL],
        max_position_embeddings=context,
        attention_scale=read_attention_scale(fields, "query_pre_attn_scalar", scalar),
        qk_norm=fields.fixed("qk_norm", "head"),
        final_logit_softcapping=fields.number_or_none("final_logit_softcapping", default(None)),
        layers=tuple(LayerKind(window, ropes[kind]) for window, kind in zip(windows, kinds)),
    )


def read_kinds(fields: Fields, num_layers: int) -> list[str]:
    """What ``layer_types`` says, else every sixth layer sees all (``sliding_window_pattern``)."""
    pattern = fields.integer("sliding_window_pattern", default(6))
    if fields.take("layer_types") is None:
        # transformers writes it beside layer_types, and does not read it back.
        fields.neutral("_sliding_window_pattern", (pattern,), "another sliding_window_pattern")
    kinds = [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]
    by = f"sliding_window_pattern ({pattern}, {fields.sources['sliding_window_pattern']})"
    return read_layer_types(fields, num_layers, implied(kinds, by))


FAMILY = Family(
    model_type="gemma3_text",
    architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
    read=read,
    layer_names={**SANDWICH, "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"},
)
