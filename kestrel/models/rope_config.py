"""What a config says about rotary position embedding, validated on construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import check_integer, check_number, shorten

__all__ = ["ROPE_TYPES", "RopeConfig"]

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding, under the names of transformers' ``rope_parameters``.

    Attributes:
        type: ``default``, ``linear`` or ``llama3`` (``rope_type``).
        theta: base of the wavelengths (``rope_theta``).
        factor: what stretches the context; linear and llama3.
        low_freq_factor, high_freq_factor: llama3 only.
        original_max_position_embeddings: context of the pretraining; llama3 only.
        rotary_dim: columns of each head that are rotated, the first ones; None: all.

    Raises ConfigError (UnsupportedModelError for another type) naming the field.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    rotary_dim: int | None = None

    def __post_init__(self) -> None:
        if self.type not in ROPE_TYPES:
            raise UnsupportedModelError(
                f"rope_type: expected one of {', '.join(ROPE_TYPES)}, found {shorten(self.type)}: "
                "this scaling is not supported",
                "rope_type",
            )
        check_number("rope_theta", self.theta)
        needed = {
            "default": (),
            "linear": ("factor",),
            "llama3": tuple(_ROPE_OPTIONS),
        }[self.type]
        for key in _ROPE_OPTIONS:
            value = getattr(self, key)
            if key in needed and value is None:
                raise ConfigError(f"{key}: rope_type {self.type!r} needs it, but it is absent", key)
            if key not in needed and value is not None:
                raise ConfigError(
                    f"{key}: expected none for rope_type {self.type!r}, found {shorten(value)}: "
                    "correct rope_type or remove it",
                    key,
                )
        if self.factor is not None:
            check_number("factor", self.factor, minimum=1.0)
        if self.type == "llama3":
            self._check_llama3()

    def settings(self) -> Iterator[tuple[str, object]]:
        """(name in config.json, value) of every setting that is set."""
        yield "rope_type", self.type
        yield "rope_theta", self.theta
        for key in (*_ROPE_OPTIONS, "rotary_dim"):
            if getattr(self, key) is not None:
                yield key, getattr(self, key)

    def rotated(self, head_dim: int) -> int:
        """Columns of a head that are rotated. Raises ConfigError unless pairs fit the head."""
        key = "head_dim" if self.rotary_dim is None else "rotary_dim"
        width = head_dim if self.rotary_dim is None else self.rotary_dim
        if width % 2 or not 2 <= width <= head_dim:
            raise ConfigError(
                f"{key}: expected an even number (RoPE rotates pairs) of at most head_dim "
                f"({head_dim}), found {width}",
                key,
            )
        return width

    def stretched(self, max_position_embeddings: int) -> int:
        """Most tokens of a sequence for a model made for ``max_position_embeddings``."""
        return max_position_embeddings

    def length_range(self, context: int) -> tuple[int, int] | None:
        """(first, last) lengths between which the frequencies change; None: they never do."""
        return None

    def _check_llama3(self) -> None:
        low = check_number("low_freq_factor", self.low_freq_factor)
        high = check_number("high_freq_factor", self.high_freq_factor)
        if not np.float32(high - low) > 0:
            raise ConfigError(
                f"high_freq_factor: expected above low_freq_factor ({low:g}), found {high:g}",
                "high_freq_factor",
            )
        key = "original_max_position_embeddings"
        check_integer(key, self.original_max_position_embeddings)


_ROPE_OPTIONS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)
