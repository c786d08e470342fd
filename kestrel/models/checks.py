"""Checks of single values of a config, with messages that name the key."""

from __future__ import annotations

import math

import numpy as np

from kestrel.dtypes import FLOAT32_MAX
from kestrel.errors import ConfigError

__all__ = ["INT32_MAX", "MAX_HEAD_DIM", "MAX_LAYERS"]
__all__ += ["check_integer", "check_number", "default_attention_scale", "shorten"]

#: Sizes travel to the kernels as int32.
INT32_MAX = 2**31 - 1
#: Far above any model; a broken config must not become hours of work or a full memory.
MAX_LAYERS = 10_000
MAX_HEAD_DIM = 65_536


def shorten(value: object, width: int = 60) -> str:
    """``repr`` of a value, cut so that a message stays readable."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def check_integer(key: str, value: object, minimum: int = 1, maximum: int = INT32_MAX) -> int:
    """``value`` when it is an int in [minimum, maximum]. Raises ConfigError naming ``key``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key}: expected an integer, found {shorten(value)}", key)
    if not minimum <= value <= maximum:
        expected = f"an integer from {minimum:,} to {maximum:,}"
        raise ConfigError(f"{key}: expected {expected}, found {shorten(value)}", key)
    return value


def check_number(key: str, value: object, above: float = 0.0, minimum: float = 0.0) -> float:
    """``value`` as a float, when it is > ``above`` and >= ``minimum`` once rounded to float32.

    Integers are accepted; bools, strings, NaN and infinities are not. Raises ConfigError.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key}: expected a number, found {shorten(value)}", key)
    # Compared before it is converted: an int above 1e308 has no float. NaN fails every comparison.
    if not (abs(value) <= FLOAT32_MAX and np.float32(value) > above and value >= minimum):
        bound = f"of at least {minimum:g}" if minimum > above else f"above {above:g}"
        expected = f"a finite number {bound}, within float32"
        raise ConfigError(f"{key}: expected {expected}, found {shorten(value)}", key)
    return float(value)


def default_attention_scale(head_dim: int) -> float:
    """``head_dim ** -0.5`` rounded to float32, as torch rounds a Python factor of a float32 tensor.

    Through sqrt, which IEEE 754 rounds correctly on every platform; pow is up to the libm.
    """
    return float(np.float32(1.0 / math.sqrt(head_dim)))
