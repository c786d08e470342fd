"""What a config says about rotary position embedding, validated on construction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import INT32_MAX, check_integer, check_number, shorten

__all__ = ["MAX_TABLE_BYTES", "ROPE_TYPES", "RopeConfig"]

#: Type to the settings that it needs, and to those that it may have.
_SETTINGS = MappingProxyType(
    {
        "default": ((), ()),
        "linear": (("factor",), ()),
        "dynamic": (("factor", "max_position_embeddings"), ()),
        "yarn": (
            (
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "truncate",
            ),
            ("mscale", "mscale_all_dim"),
        ),
        "longrope": (
            (
                "original_max_position_embeddings",
                "attention_factor",
                "short_factor",
                "long_factor",
            ),
            ("factor",),
        ),
        "llama3": (
            (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ),
            (),
        ),
    }
)
ROPE_TYPES = tuple(_SETTINGS)
_ALL_SETTINGS = tuple(
    dict.fromkeys(key for needed, allowed in _SETTINGS.values() for key in (*needed, *allowed))
)
#: A dynamic table has a row for each length: more is a config that nobody means to run.
MAX_TABLE_BYTES = 64 << 20


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding, under the names of transformers' ``rope_parameters``.

    Attributes:
        type: one of ROPE_TYPES (``rope_type``).
        theta: base of the wavelengths (``rope_theta``).
        factor: what stretches the context; all types but default, longrope may go without.
        low_freq_factor, high_freq_factor: llama3 only.
        original_max_position_embeddings: context of the pretraining; llama3, yarn and longrope.
        rotary_dim: columns of each head that are rotated, the first ones; None: all.
        attention_factor: what cos and sin are multiplied by; yarn and longrope.
        beta_fast, beta_slow: turns within the original context above which a frequency stays, and
            below which it is divided by factor; yarn only.
        truncate: whether the pairs where yarn's ramp begins and ends are whole numbers.
        mscale, mscale_all_dim: what ``attention_factor`` came from, where yarn has them.
        short_factor, long_factor: what the wavelength of each pair is multiplied by in a sequence
            of up to original_max_position_embeddings tokens, and in a longer one; longrope only.
        max_position_embeddings: length from which on frequencies change; dynamic only.

    Raises ConfigError (UnsupportedModelError for another type) naming the field.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    rotary_dim: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        if self.type not in ROPE_TYPES:
            raise UnsupportedModelError(
                f"rope_type: expected one of {', '.join(ROPE_TYPES)}, found {shorten(self.type)}: "
                "this scaling is not supported",
                "rope_type",
            )
        # yarn divides by the logarithm of theta.
        check_number("rope_theta", self.theta, above=1.0 if self.type == "yarn" else 0.0)
        self._check_settings()
        for key in ("max_position_embeddings", "original_max_position_embeddings"):
            if getattr(self, key) is not None:
                check_integer(key, getattr(self, key))
        for key in ("attention_factor", "beta_slow"):
            if getattr(self, key) is not None:
                check_number(key, getattr(self, key))
        if self.factor is not None:
            check_number("factor", self.factor, minimum=1.0)
        if self.type == "yarn":
            check_number("beta_fast", self.beta_fast, minimum=self.beta_slow)
        for key in ("short_factor", "long_factor"):
            for i, factor in enumerate(getattr(self, key) or ()):
                check_number(f"{key}[{i}]", factor)
        if self.type == "llama3":
            self._check_llama3()

    def settings(self) -> Iterator[tuple[str, object]]:
        """(name in config.json, value) of every setting that is set.

        Not ``max_position_embeddings``, which is the model's.
        """
        yield "rope_type", self.type
        yield "rope_theta", self.theta
        for key in (*_ALL_SETTINGS, "rotary_dim"):
            if getattr(self, key) is not None and key != "max_position_embeddings":
                yield key, getattr(self, key)

    def rotated(self, head_dim: int) -> int:
        """Columns of a head that are rotated. Raises ConfigError unless pairs fit the head, and
        the type fits the pairs."""
        key = "head_dim" if self.rotary_dim is None else "rotary_dim"
        width = head_dim if self.rotary_dim is None else self.rotary_dim
        if width % 2 or not 2 <= width <= head_dim:
            raise ConfigError(
                f"{key}: expected an even number (RoPE rotates pairs) of at most head_dim "
                f"({head_dim}), found {width}",
                key,
            )
        if self.type == "dynamic" and width < 4:
            raise ConfigError(
                f"{key}: expected at least 4, since dynamic RoPE divides by {key} - 2, found "
                f"{width}",
                key,
            )
        for name in ("short_factor", "long_factor"):
            factors = getattr(self, name)
            if factors is not None and len(factors) != width // 2:
                raise ConfigError(
                    f"{name}: expected {width // 2} numbers, one for each rotated pair ({width} "
                    f"columns of each head are rotated), found {len(factors)}",
                    name,
                )
        return width

    def stretched(self, max_position_embeddings: int) -> int:
        """Most tokens of a sequence for a model made for ``max_position_embeddings``.

        yarn is switched on by its block alone in Qwen's model cards, so that the field stays below
        what the block reaches. linear has no length of its own to tell which of the two it means.
        """
        if self.type == "dynamic":
            return int(self.factor * max_position_embeddings)
        if self.type == "yarn":
            reach = int(self.factor * self.original_max_position_embeddings)
            return max(max_position_embeddings, min(reach, INT32_MAX))
        return max_position_embeddings

    def length_range(self, context: int) -> tuple[int, int] | None:
        """(first, last) lengths between which the frequencies change; None: they never do."""
        if self.type == "dynamic":
            first, last = self.max_position_embeddings, context
        elif self.type == "longrope":
            first = self.original_max_position_embeddings
            last = first + 1
        else:
            return None
        return None if context <= first else (first, last)

    def table_rows(self, head_dim: int, context: int) -> int:
        """Rows of frequencies for sequences up to ``context`` tokens: one for each length at which
        they change. Raises ConfigError when they fill more than MAX_TABLE_BYTES."""
        lengths = self.length_range(context)
        rows = 1 if lengths is None else lengths[1] - lengths[0] + 1
        size = rows * self.rotated(head_dim) // 2 * 4  # float32
        if rows > 1 and size > MAX_TABLE_BYTES:
            raise ConfigError(
                f"factor: {self.type} RoPE from {lengths[0]:,} to {lengths[1]:,} tokens "
                "(max_position_embeddings times factor) has frequencies of its own at each length: "
                f"expected at most {MAX_TABLE_BYTES >> 20} MB of them, found {size >> 20:,} MB: "
                "lower factor",
                "factor",
            )
        return rows

    def _check_settings(self) -> None:
        needed, allowed = _SETTINGS[self.type]
        for key in _ALL_SETTINGS:
            value = getattr(self, key)
            if key in needed and value is None:
                raise ConfigError(f"{key}: rope_type {self.type!r} needs it, but it is absent", key)
            if key not in (*needed, *allowed) and value is not None:
                raise ConfigError(
                    f"{key}: expected none for rope_type {self.type!r}, found {shorten(value)}: "
                    "correct rope_type or remove it",
                    key,
                )

    def _check_llama3(self) -> None:
        low = check_number("low_freq_factor", self.low_freq_factor)
        high = check_number("high_freq_factor", self.high_freq_factor)
        if not np.float32(high - low) > 0:
            raise ConfigError(
                f"high_freq_factor: expected above low_freq_factor ({low:g}), found {high:g}",
                "high_freq_factor",
            )
