"""Qwen 1.5, 2, 2.5 and QwQ: Llama with biases on q, k and v, and windows in the upper layers.

Defaults are those of transformers' Qwen2Config.
"""

from __future__ import annotations

from kestrel.models.config import DecoderConfig, LayerKind
from kestrel.models.family import Family
from kestrel.models.fields import Fields, default, implied
from kestrel.models.readers import (
    FULL,
    SLIDING,
    read_attention_scale,
    read_layer_types,
    read_sizes,
    windows_of,
)
from kestrel.models.rope_fields import parse_rope

__all__ = ["FAMILY", "read_windows"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a Qwen2 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(32))
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(32768))
    rope = parse_rope(fields, sizes.head_dim, default(10000.0), context)
    return DecoderConfig(
        model_type="qwen2",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(False)),
        attention_bias=fields.fixed("attention_bias", True),
        attention_output_bias=fields.fixed("attention_output_bias", False),
        mlp_bias=fields.fixed("mlp_bias", False),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        layers=tuple(LayerKind(each, rope) for each in read_windows(fields, sizes.num_layers)),
    )


def read_windows(fields: Fields, num_layers: int) -> list[int | None]:
    """The window of each layer: what ``layer_types`` says, else from ``max_window_layers`` on.

    ``use_sliding_window`` false (its default) switches every window off.
    """
    is_used = fields.flag("use_sliding_window", default(False))
    window = fields.integer_or_none("sliding_window", default(4096))
    if not is_used:
        window = fields.record("sliding_window", implied(None, "use_sliding_window (false)"))
    first = fields.integer("max_window_layers", default(28), minimum=0)
    kinds = [FULL if window is None or i < first else SLIDING for i in range(num_layers)]
    by = f"max_window_layers ({first}, {fields.sources['max_window_layers']})"
    return windows_of(read_layer_types(fields, num_layers, implied(kinds, by)), window)


FAMILY = Family(
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    read=read,
)
