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
    """The frequencies for heads of ``head_dim`` columns and sequences up to ``context`` tokens.

    Raises ConfigError when the table would be too large (dynamic).
    """
    rows = rope.table_rows(head_dim, context)
    lengths = rope.length_range(context)
    first = 0 if lengths is None else lengths[0]
    table = inverse_frequencies(rope, rope.rotated(head_dim), range(first, first + rows))
    scale = 1.0 if rope.attention_factor is None else rope.attention_factor
    return Frequencies(np.ascontiguousarray(table), first, scale)


def inverse_frequencies(
    rope: RopeConfig, rotary_dim: int, lengths: range = range(1)
) -> np.ndarray:
    """Radians per position of each rotated pair, in a sequence of each of ``lengths`` tokens.

    ``default``: theta ** -(2i / D) (arXiv:2104.09864). ``linear``: divided by factor.
    ``llama3``: divided by factor where the wavelength is long, blended between (Llama 3.1).
    ``yarn``: a blend by the number of turns (arXiv:2309.00071). ``dynamic``: theta grows with the
    length (NTK-aware scaling). ``longrope``: each wavelength has a factor (arXiv:2402.13753).

    Returns:
        float32 [len(lengths), rotary_dim / 2].
    """
    # With extreme settings a power may leave float32, or the branch that np.where leaves out.
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if rope.type == "dynamic":
            return _dynamic(rope, rotary_dim, lengths)
        powers = _powers([rope.theta], _exponents(rotary_dim))  # [1, D / 2]
        if rope.type == "longrope":
            return _longrope(powers, rope, lengths)
        if rope.type == "yarn":
            one_length = _yarn(powers, rope)
        elif rope.type == "llama3":
            one_length = _llama3(np.float32(1) / powers, rope)
        elif rope.type == "linear":
            one_length = np.float32(1) / powers / np.float32(rope.factor)
        else:
            one_length = np.float32(1) / powers
    return np.repeat(one_length, len(lengths), axis=0)


def _exponents(dim: int) -> np.ndarray:
    return np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)


#: Far more than the error of any libm's pow in float64, and of the product around it.
_DOUBT = 2.0**-40
# A power closer than 1e-40 (relative) to the midpoint of two float32 values would be needed for the
# digits below to round wrongly, without being the midpoint (as 4097 ** 2 is).
_DIGITS = 48
_EXACT = Decimal("1e-40")


def _powers(bases: "np.ndarray | list[float]", exponents: np.ndarray) -> np.ndarray:
    """float32(base) ** exponent, rounded correctly to float32: [bases, exponents].

    The platform's pow decides only where its error cannot matter: where float32 rounds everything
    near its result to one value. The rest, one in some ten thousand, is computed by hand.
    """
    bases, exponents = np.asarray(bases, np.float32), np.asarray(exponents, np.float64)
    near = bases.astype(np.float64)[:, None] ** exponents
    powers = (near * (1 - _DOUBT)).astype(np.float32)
    doubtful = powers != (near * (1 + _DOUBT)).astype(np.float32)
    # A context of our own: the caller's may trap inexact results or hold few digits.
    with decimal.localcontext(decimal.Context(prec=_DIGITS, traps=[])):
        for i, j in np.argwhere(doubtful):
            logarithm = Decimal(float(bases[i])).ln()
            powers[i, j] = _nearest_float32((Decimal(float(exponents[j])) * logarithm).exp())
    return powers


def _nearest_float32(value: Decimal) -> np.float32:
    near = np.float32(float(value))
    if abs(Decimal(float(value)) - value) <= _EXACT * value:
        return near
    # Through float64 a value might have rounded twice, so its neighbours compete.
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


def _dynamic(rope: RopeConfig, dim: int, lengths: range) -> np.ndarray:
    """transformers' _compute_dynamic_ntk_parameters, which has the length in an integer tensor.

    Up to the model's own length, theta is as it is. torch raises a tensor of one number to a Python
    float in float64: its exponent is not rounded to float32.
    """
    limit, factor = rope.max_position_embeddings, rope.factor
    length = np.maximum(np.asarray(lengths), limit)
    growth = np.float32(factor) * length.astype(np.float32) / np.float32(limit)
    growth = growth - np.float32(factor - 1)
    theta = np.float32(rope.theta) * _powers(growth, [dim / (dim - 2)])[:, 0]
    theta = np.where(length > limit, theta, np.float32(rope.theta))
    return np.float32(1) / _powers(theta, _exponents(dim))


def _yarn(powers: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """transformers' _compute_yarn_parameters."""
    half, one = powers.shape[-1], np.float32(1)
    low, high = _yarn_range(2 * half, rope)
    ramp = (np.arange(half, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    stays = one - np.clip(ramp, np.float32(0), one)
    divided = one / (np.float32(rope.factor) * powers)
    return divided * (one - stays) + one / powers * stays


def _yarn_range(dim: int, rope: RopeConfig) -> tuple[float, float]:
    """The pairs between which frequencies blend: those that turn beta_fast and beta_slow times
    within the original context."""
    context = rope.original_max_position_embeddings

    def pair(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _longrope(powers: np.ndarray, rope: RopeConfig, lengths: range) -> np.ndarray:
    """transformers' _compute_longrope_parameters."""
    is_long = np.asarray(lengths)[:, None] > rope.original_max_position_embeddings
    short, long = (np.asarray(f, np.float32) for f in (rope.short_factor, rope.long_factor))
    return np.float32(1) / (np.where(is_long, long, short) * powers)
