"""Inverse frequencies of rotary position embedding, the same bits on every platform.

The formulas and their order of operations are those of transformers' modeling_rope_utils, in
float32. The one step that depends on the platform there, ``theta ** exponent``, is rounded
correctly here (torch's own is within one unit in the last place of it).
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from kestrel.models.rope_config import RopeConfig

__all__ = ["Frequencies", "frequencies", "inverse_frequencies"]


@dataclass(frozen=True)
class Frequencies:
    """What turns positions into angles.

    Attributes:
        table: float32 [rows, rotated columns / 2], radians per position of each pair. The row of a
            token is the length of its sequence minus ``first_length``, kept within the table.
        first_length: see ``table``; of no meaning with one row.
        scale: what cos and sin are multiplied by.
    """

    table: np.ndarray
    first_length: int
    scale: float


def frequencies(rope: RopeConfig, head_dim: int, context: int) -> Frequencies:
    """The frequencies for heads of ``head_dim`` columns and sequences up to ``context`` tokens."""
    return Frequencies(inverse_frequencies(rope, rope.rotated(head_dim))[None], 0, 1.0)

# A power closer than 1e-40 (relative) to the midpoint of two float32 values would be needed for the
# digits below to round wrongly; the midpoints themselves are never reached (24-bit theta).
_DIGITS = 48


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> np.ndarray:
    """Radians per position of each rotated pair: float32 [rotary_dim / 2].

    ``default``: theta ** -(2i / D) (arXiv:2104.09864). ``linear``: divided by factor.
    ``llama3``: divided by factor where the wavelength is long, blended between (Llama 3.1).
    """
    inv_freq = np.float32(1) / _powers(rope.theta, rotary_dim)
    if rope.type == "linear":
        return inv_freq / np.float32(rope.factor)
    if rope.type == "llama3":
        # With extreme settings the branch that np.where leaves out may overflow.
        with np.errstate(over="ignore", invalid="ignore"):
            return _llama3(inv_freq, rope)
    return inv_freq


def _powers(theta: float, dim: int) -> np.ndarray:
    """float32(theta) ** float32(2i / D), correctly rounded: float32 [D / 2]."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    powers = np.empty_like(exponents)
    # A context of our own: the caller's may trap inexact results or hold few digits.
    with decimal.localcontext(decimal.Context(prec=_DIGITS, traps=[])):
        logarithm = Decimal(float(np.float32(theta))).ln()
        for i, exponent in enumerate(exponents):
            powers[i] = _nearest_float32((Decimal(float(exponent)) * logarithm).exp())
    return powers


def _nearest_float32(value: Decimal) -> np.float32:
    # Through float64 alone a value might round twice, so its neighbours compete.
    near = np.float32(float(value))
    candidates = (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)))
    finite = (c for c in candidates if np.isfinite(c))
    return min(finite, key=lambda candidate: abs(Decimal(float(candidate)) - value))


def _llama3(inv_freq: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """transformers' _compute_llama3_parameters; torch computes scalar / x as (1 / x) * scalar."""
    one, factor = np.float32(1), np.float32(rope.factor)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    context = rope.original_max_position_embeddings
    wavelength = one / inv_freq * np.float32(2 * math.pi)
    is_long = wavelength > np.float32(context / low)
    is_short = wavelength < np.float32(context / high)
    smooth = one / wavelength * np.float32(context) - np.float32(low)
    smooth = smooth / np.float32(high - low)
    blended = (one - smooth) * inv_freq / factor + smooth * inv_freq
    return np.where(is_long, inv_freq / factor, np.where(is_short, inv_freq, blended))
