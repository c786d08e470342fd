"""What the families read alike from a config.json: sizes, kinds of layers, the scale of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import (
    MAX_HEAD_DIM,
    MAX_LAYERS,
    default_attention_scale,
    shorten,
)
from kestrel.models.config import LayerKind
from kestrel.models.fields import Fallback, Fields, implied
from kestrel.models.rope_config import RopeConfig

__all__ = ["FULL", "SLIDING", "Sizes", "read_attention_scale", "read_layer_types", "read_sizes"]
__all__ += ["read_uniform_layers", "windows_of"]

#: The kinds of attention in ``layer_types`` that are supported.
FULL, SLIDING = "full_attention", "sliding_attention"


class Sizes(NamedTuple):
    """The fields of DecoderConfig that shape the weights."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def read_sizes(
    fields: Fields, num_kv_heads: Fallback | None = None, head_dim: Fallback | None = None
) -> Sizes:
    """The sizes of a config.json, all of them required but these two.

    Args:
        fields: the config.json.
        num_kv_heads: for an absent ``num_key_value_heads``; None: ``num_attention_heads``, which
            null means in every family.
        head_dim: for an absent ``head_dim``; None: hidden_size / num_attention_heads.

    A config.json without the other sizes is cut or foreign, and the 7B model of transformers'
    defaults is no guess for it. Raises ConfigError naming the field.
    """
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    if num_kv_heads is None or fields.is_null("num_key_value_heads"):
        num_kv_heads = implied(num_heads, "num_attention_heads")
    return Sizes(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers", maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_kv_heads),
        head_dim=_read_head_dim(fields, hidden_size, num_heads, head_dim),
    )


def _read_head_dim(
    fields: Fields, hidden_size: int, num_heads: int, fallback: Fallback | None
) -> int:
    if fallback is None:
        if fields.take("head_dim") is None and hidden_size % num_heads:
            raise ConfigError(
                f"hidden_size: expected a multiple of num_attention_heads ({num_heads}), since "
                f"head_dim is absent, found {hidden_size}",
                "hidden_size",
            )
        fallback = implied(hidden_size // num_heads, "hidden_size / num_attention_heads")
    return fields.integer("head_dim", fallback, maximum=MAX_HEAD_DIM)


def read_attention_scale(fields: Fields, key: str, size: float) -> float:
    """``size ** -0.5`` as a float32 value; ``key`` is the field of config.json that gives it."""
    scale = default_attention_scale(size)
    return fields.record("attention_scale", implied(scale, f"{key} ({key} ** -0.5)"))


def read_layer_types(fields: Fields, num_layers: int, fallback: Fallback) -> Sequence[str]:
    """``layer_types``: the kind of each layer, FULL or SLIDING.

    Raises ConfigError unless it is a list of one name a layer, UnsupportedModelError for a kind
    that is not implemented.
    """
    kinds = fields.take("layer_types")
    if kinds is None:
        return fields.record("layer_types", fallback)
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        found = f"{len(kinds)}" if isinstance(kinds, list) else shorten(kinds)
        raise ConfigError(
            f"layer_types: expected {num_layers} entries (num_hidden_layers), found {found}",
            "layer_types",
        )
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise UnsupportedModelError(
                f"layer_types: expected {FULL} or {SLIDING}, found {shorten(kind)}: this kind of "
                "layer is not supported",
                "layer_types",
            )
    fields.sources["layer_types"] = "config.json"
    return kinds


def windows_of(kinds: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer. Raises ConfigError when a layer needs one and there is none."""
    if window is None and SLIDING in kinds:
        raise ConfigError(
            f"sliding_window: layer {kinds.index(SLIDING)} is {SLIDING} (layer_types), so a window "
            "is needed, but none is in use",
            "sliding_window",
        )
    return [window if kind == SLIDING else None for kind in kinds]


def read_uniform_layers(
    fields: Fields, num_layers: int, window: int | None, rope: RopeConfig
) -> tuple[LayerKind, ...]:
    """Layers that are all alike, in a family whose class does not look at ``layer_types``.

    Raises as ``read_layer_types``, and when the list says something else.
    """
    kind = LayerKind(window, rope)
    alike = implied([kind.attention] * num_layers, "model_type")
    for found in read_layer_types(fields, num_layers, alike):
        if found != kind.attention:
            raise UnsupportedModelError(
                f"layer_types: expected {kind.attention} for each layer, found {found}: layers of "
                "other kinds are not supported for this model_type",
                "layer_types",
            )
    return (kind,) * num_layers
