"""Frequencies of the RoPE types in NumPy, after their papers, right or wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["frequencies"]


def frequencies(
    rope: Mapping[str, object], lengths: np.ndarray, fault: str
) -> tuple[np.ndarray, float]:
    """Radians per position of each pair for each token, float64 [N, half], and the factor of cos
    and sin. Token n is turned when its sequence has ``lengths[n]`` tokens."""
    dim, kind = int(rope["rotary_dim"]), rope["rope_type"]
    theta = 10000.0 if fault == "rope theta 10000 whatever the config" else rope["rope_theta"]
    exponent = np.arange(0, dim, 2) / dim
    plain = np.tile(float(theta) ** -exponent, (len(lengths), 1))
    if fault == "rope scaling ignored" or kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / rope["factor"], 1.0
    if kind == "llama3":
        return _llama3(plain, rope, fault), 1.0
    if kind == "dynamic":
        limit, factor = rope["max_position_embeddings"], rope["factor"]
        stretch = factor * np.maximum(lengths, limit) / limit - (factor - 1)
        return (theta * stretch[:, None] ** (dim / (dim - 2))) ** -exponent, 1.0
    if kind == "longrope":
        return _longrope(plain, rope, lengths, fault)
    assert kind == "yarn", kind
    return _yarn(plain, rope, fault)


def _llama3(plain: np.ndarray, rope: Mapping[str, object], fault: str) -> np.ndarray:
    length, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * np.pi / plain
    blend = (length / wavelength - low) / (high - low)
    if fault == "rope scaling without its blend":
        blend = np.round(blend)
    blended = (1 - blend) * plain / factor + blend * plain
    return np.where(
        wavelength > length / low,
        plain / factor,
        np.where(wavelength < length / high, plain, blended),
    )


def _longrope(
    plain: np.ndarray, rope: Mapping[str, object], lengths: np.ndarray, fault: str
) -> tuple[np.ndarray, float]:
    original = rope["original_max_position_embeddings"]
    is_long = lengths > original + (fault == "long factors one token late")
    if fault == "short factors whatever the length":
        is_long = np.zeros_like(is_long)
    divisor = np.where(is_long[:, None], rope["long_factor"], rope["short_factor"])
    factor = rope.get("factor") or rope["max_position_embeddings"] / original
    scale = rope.get("attention_factor") or math.sqrt(1 + math.log(factor) / math.log(original))
    return plain / divisor, 1.0 if fault == "cos and sin not stretched" else scale


def _yarn(
    plain: np.ndarray, rope: Mapping[str, object], fault: str
) -> tuple[np.ndarray, float]:
    """Peng and others 2023, arXiv:2309.00071, equations 22 and 23, with whole dimensions."""
    dim, theta, factor = rope["rotary_dim"], rope["rope_theta"], rope["factor"]
    original = rope["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True) and fault != "yarn dimensions not whole":
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low or 0.001), 0, 1)
    top, bottom = rope.get("mscale") or 1, rope.get("mscale_all_dim")
    stretch = (0.1 * top * math.log(factor) + 1) if bottom or top == 1 else 1
    if bottom and rope.get("mscale"):
        stretch /= 0.1 * bottom * math.log(factor) + 1
    frequency = plain / factor * ramp + plain * (1 - ramp)
    return frequency, 1.0 if fault == "cos and sin not stretched" else stretch
