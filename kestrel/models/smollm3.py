"""SmolLM3: Llama in which every fourth layer has no RoPE (NoPE, arXiv:2501.18795).

Defaults are those of transformers' SmolLM3Config.
"""

from __future__ import annotations

from kestrel.errors import ConfigError
from kestrel.models.checks import shorten
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

__all__ = ["FAMILY"]


def read(fields: Fields) -> DecoderConfig:
    """DecoderConfig of a SmolLM3 config.json. Raises ConfigError naming the field."""
    sizes = read_sizes(fields, num_kv_heads=default(4))
    fields.choice("hidden_act", ("silu", "swish"), default("silu"))
    context = fields.integer("max_position_embeddings", default(32768))
    rope = parse_rope(fields, sizes.head_dim, default(2000000.0), context)
    rotated = read_rotated(fields, sizes.num_layers)
    windows = read_windows(fields, rotated)
    fields.take("pretraining_tp")  # 2 in the released files: how it was trained
    return DecoderConfig(
        model_type="smollm3",
        **sizes._asdict(),
        rms_norm_eps=fields.number("rms_norm_eps", default(1e-6)),
        rope=rope,
        max_position_embeddings=context,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default(True)),
        attention_bias=fields.flag("attention_bias", default(False)),
        mlp_bias=fields.flag("mlp_bias", default(False)),
        attention_scale=read_attention_scale(fields, "head_dim", sizes.head_dim),
        layers=tuple(LayerKind(w, rope if r else None) for w, r in zip(windows, rotated)),
    )


def read_rotated(fields: Fields, num_layers: int) -> list[bool]:
    """Whether each layer has RoPE: ``no_rope_layers``, whose 1 means that it has."""
    interval = fields.integer("no_rope_layer_interval", default(4))
    listed = fields.take("no_rope_layers")
    if listed is None:
        flags = [(i + 1) % interval != 0 for i in range(num_layers)]
        by = f"no_rope_layer_interval ({interval}, {fields.sources['no_rope_layer_interval']})"
        return fields.record("no_rope_layers", implied(flags, by))
    is_list = isinstance(listed, list) and all(type(each) is int for each in listed)
    if not is_list or len(listed) < num_layers or not {0, 1}.issuperset(listed):
        raise ConfigError(
            f"no_rope_layers: expected {num_layers} entries (num_hidden_layers) of 1 for a layer "
            f"with RoPE or 0 for one without, found {shorten(listed)}",
            "no_rope_layers",
        )
    fields.sources["no_rope_layers"] = "config.json"
    return [bool(each) for each in listed[:num_layers]]


def read_windows(fields: Fields, rotated: list[bool]) -> list[int | None]:
    """The window of each layer: what ``layer_types`` says, else layers without RoPE have it."""
    is_used = fields.flag("use_sliding_window", default(False))
    window = fields.integer_or_none("sliding_window", default(None))
    if not is_used:
        window = fields.record("sliding_window", implied(None, "use_sliding_window (false)"))
    kinds = [FULL if window is None or each else SLIDING for each in rotated]
    kinds = read_layer_types(fields, len(rotated), implied(kinds, "no_rope_layers"))
    if SLIDING not in kinds:
        # Left over from Qwen2 in the released files; SmolLM3Config does not know it.
        fields.take("max_window_layers")
    return windows_of(kinds, window)


FAMILY = Family(
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM", "SmolLM3Model"),
    read=read,
)
