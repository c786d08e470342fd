"""The rotary embedding: its tables, and their use on queries and keys.

transformers computes frequencies, angles and tables in float32 (modeling_rope_utils.py), also in a
float64 model, so that errors of tables are units of float32 for every `Arithmetic`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kestrel.bounds.arithmetic import TINY, UNIT32, Arithmetic, Array, Bounded

__all__ = ["rope", "rotary"]

#: Frequencies [N or 1, half] in radians per position, and their absolute errors in units of
#: `UNIT32`.
Frequencies = tuple[Array, Array]
Parameters = Mapping[str, object]


def rotary(
    positions: Array, lengths: Array, half: int, parameters: Parameters, how: Arithmetic
) -> tuple[Bounded, Bounded]:
    """cos and sin of position times frequency, each [N, half] with its bound.

    Positions and lengths are [N]: where each token stands, and how long its sequence was at the
    end of the call that brought it, by which some types choose their frequencies. ``half`` is half
    of the columns of a head that are rotated. ``parameters`` is the ``rope_parameters`` block of a
    config: rope_theta, rope_type and what the type needs, and the config's
    ``max_position_embeddings``.

    The product with the position rounds the angle once, and an error of the angle is one of the
    table at most. cos and sin have their own, and a factor on them two more (itself, product).
    """
    kind = parameters["rope_type"]
    if kind not in _TYPES:
        raise ValueError(f"rope_type: expected one of {', '.join(_TYPES)}, found {kind!r}")
    lengths = np.asarray(lengths, np.float64)[:, None]
    frequency, error = _TYPES[kind](half, lengths, parameters, how)
    scale = _attention_factor(parameters)
    positions = np.asarray(positions, np.float64)[:, None]
    angle = positions * frequency
    angle_error = UNIT32 * positions * (error + frequency)

    def bounded(table: Array) -> Bounded:
        bound = angle_error + UNIT32 * 2 * how.trig_ulps * np.abs(table)
        bound = scale * (bound + UNIT32 * 2 * (scale != 1) * (np.abs(table) + bound))
        return scale * table, bound + TINY

    return bounded(np.cos(angle)), bounded(np.sin(angle))


def _powers(theta: Array | float, half: int, how: Arithmetic, error: Array | float = 1.0) -> tuple:
    """``theta ** (2 i / D)`` and its relative error, when theta has a relative one of ``error``.

    The exponent's rounding is magnified by ln(theta) times the exponent, theta's by the exponent;
    pow has its own error, but ``theta ** 0`` is 1 exactly.
    """
    exponent = np.arange(half) / half
    errors = exponent * (error + np.log(theta)) + 2 * how.pow_ulps * (exponent > 0)
    return theta**exponent, errors


def _default(
    half: int, lengths: Array, parameters: Parameters, how: Arithmetic
) -> Frequencies:
    """``1 / theta ** (2 i / D)``: one more rounding, except of 1 / 1."""
    power, error = _powers(float(parameters["rope_theta"]), half, how)
    error = error + (np.arange(half) > 0)
    return (1 / power)[None], (error / power)[None]


def _linear(half: int, lengths: Array, parameters: Parameters, how: Arithmetic) -> Frequencies:
    """The default divided by factor: factor and quotient."""
    frequency, error = _default(half, lengths, parameters, how)
    factor = parameters["factor"]
    return frequency / factor, (error + 2 * frequency) / factor


def _llama3(half: int, lengths: Array, parameters: Parameters, how: Arithmetic) -> Frequencies:
    """The default, divided by factor, or a blend of the two.

    The blend's weight ``(L / wavelength - low) / (high - low)`` has an absolute error of at most
    ``high / (high - low)`` times its five roundings and the frequency's; four roundings follow.
    Scaling only lowers a frequency, so the unscaled one gives the error's size.
    """
    plain, error = _default(half, lengths, parameters, how)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * plain / (2 * np.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    frequency = plain * (blend + (1 - blend) / parameters["factor"])
    return frequency, error + high / (high - low) * (5 * plain + error) + 4 * plain


def _dynamic(half: int, lengths: Array, parameters: Parameters, how: Arithmetic) -> Frequencies:
    """The default with ``theta * s ** (D / (D - 2))``, ``s = factor length / limit - factor + 1``,
    for sequences longer than the limit.

    factor, product, limit and quotient (4) precede the subtraction of ``factor - 1``, itself
    rounded, and its own rounding; pow magnifies that by its exponent, whose rounding counts by
    ln(s). theta and the product with it come on top (2). A sequence within the limit has s = 1
    without any of this, but the bound need not tell.
    """
    limit, factor = parameters["max_position_embeddings"], parameters["factor"]
    dim = 2 * half
    longer = factor * np.maximum(lengths, limit) / limit
    s, power = longer - (factor - 1), dim / (dim - 2)
    error = power * ((4 * longer + (factor - 1) + s) / s + np.log(s)) + 2 * how.pow_ulps + 2
    powers, error = _powers(parameters["rope_theta"] * s**power, half, how, error)
    return 1 / powers, (error + (np.arange(half) > 0)) / powers


def _yarn(half: int, lengths: Array, parameters: Parameters, how: Arithmetic) -> Frequencies:
    """Between the default (fast dimensions) and the default divided by factor (slow ones), by a
    ramp over the dimensions (Peng and others 2023, arXiv:2309.00071).

    The ramp ``(i - low) / (high - low)`` has an absolute error of three roundings and low's own
    over the ramp's length, the two weights made of it one and two more. Each product with a weight,
    and the sum of the two, round once. Where both ends lie outside the dimensions, the ramp may run
    backwards.
    """
    theta, factor = float(parameters["rope_theta"]), _factor(parameters)
    power, error = _powers(theta, half, how)
    low, high = _yarn_range(2 * half, theta, parameters)
    ramp = np.clip((np.arange(half) - low) / (high - low), 0.0, 1.0)
    weight_error = 3 + abs(low / (high - low)) + 2
    fast, slow = 1 / power, 1 / (factor * power)
    of_fast = fast * ((1 - ramp) * (error + 1 + 2) + weight_error)
    of_slow = slow * (ramp * (error + 3 + 2) + weight_error)
    return (slow * ramp + fast * (1 - ramp))[None], (of_fast + of_slow)[None]


def _yarn_range(dim: int, theta: float, parameters: Parameters) -> tuple[float, float]:
    """The dimensions where the ramp begins and ends, as modeling_rope_utils finds them."""
    original = parameters["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    return low, high + 0.001 if low == high else high


def _longrope(half: int, lengths: Array, parameters: Parameters, how: Arithmetic) -> Frequencies:
    """The default with each power multiplied by a factor of its own, from one list up to the
    original length and from another beyond: factor, product and reciprocal."""
    power, error = _powers(float(parameters["rope_theta"]), half, how)
    is_long = lengths > parameters["original_max_position_embeddings"]
    factors = np.where(is_long, parameters["long_factor"], parameters["short_factor"])
    frequency = 1 / (factors * power)
    return frequency, frequency * (error + 3)


_TYPES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def _factor(parameters: Parameters) -> float:
    limit, original = (
        parameters[key] for key in ("max_position_embeddings", "original_max_position_embeddings")
    )
    return parameters.get("factor") or limit / original


def _attention_factor(parameters: Parameters) -> float:
    """What cos and sin are multiplied by."""
    kind, given = parameters["rope_type"], parameters.get("attention_factor")
    if kind not in ("yarn", "longrope"):
        return 1.0
    if given is not None:
        return given
    factor = _factor(parameters)
    if factor <= 1:
        return 1.0
    if kind == "longrope":
        original = parameters["original_max_position_embeddings"]
        return math.sqrt(1 + math.log(factor) / math.log(original))
    scales = [parameters.get(key) for key in ("mscale", "mscale_all_dim")]
    top, bottom = scales if all(scales) else (1, 0)
    return (0.1 * top * math.log(factor) + 1) / (0.1 * bottom * math.log(factor) + 1)


def rope(x: Array, cos: Array, sin: Array, heads: int, how: Arithmetic) -> Bounded:
    """Rotate the first columns of each head of x [N, heads * D] by the tables cos, sin [N, half].

    ``(a cos - b sin, b cos + a sin)`` for the first and the second ``half`` columns a and b, as
    ``apply_rotary_pos_emb`` of transformers: one product and one sum on each path. The columns
    after them are copied.
    """
    x = np.asarray(x, np.float64)
    half = cos.shape[-1]
    a, b, rest = np.split(x.reshape(len(x), heads, -1), [half, 2 * half], axis=-1)
    cos, sin = (np.asarray(t, np.float64)[:, None, :] for t in (cos, sin))
    value = np.concatenate((a * cos - b * sin, b * cos + a * sin, rest), axis=-1)
    a, b, cos, sin = (np.abs(t) for t in (a, b, cos, sin))
    rotated = np.concatenate((a * cos + b * sin, b * cos + a * sin), axis=-1)
    bound = np.concatenate((rotated * how.gamma(0, 2) + TINY, np.zeros_like(rest)), axis=-1)
    return value.reshape(x.shape), bound.reshape(x.shape)
