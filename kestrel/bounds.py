"""What float32 arithmetic may do to one operation: its exact value and an elementwise bound.

Every function takes the inputs that an implementation saw and returns ``(value, bound)``, both
float64: the operation evaluated in float64, and the largest distance from it that an
implementation with the given `Arithmetic` can reach. Nothing here is tuned. The bounds are worst
cases of the standard model of floating point, ``fl(a op b) = (a op b)(1 + d)`` with ``|d| <= u``
(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 2.2 to 3.4), in
which n roundings on the way to a term change it by at most ``gamma(n) = n u / (1 - n u)``.

Letters: N tokens, H query heads, K kv heads, D head_dim, I inputs, O outputs of a linear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Arithmetic",
    "KESTREL",
    "REFERENCE",
    "REFERENCE_FLOAT64",
    "attention",
    "exact",
    "linear",
    "residual",
    "rms_norm",
    "rope",
    "rotary",
    "swiglu",
]

Array = np.ndarray
Bounded = tuple[Array, Array]

#: Unit roundoff of float32 and of float64.
UNIT32, UNIT64 = 2.0**-24, 2.0**-53
#: Below the normal range of float32 an operation loses up to this much outright. exp(-x) leaves
#: the range at |x| = 88, so swiglu may flush 88 * 2**-126 < 2**-119 to zero.
TINY = 2.0**-119
#: Cache positions per block: attention rescales its running sum at most once a block.
BLOCK = 16
#: Rows of a weight widened to float64 at a time, so that a large head needs little memory.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Arithmetic:
    """How an implementation rounds.

    Attributes:
        unit: unit roundoff of its additions and products.
        lanes: a sum is this many chains in parallel, joined by a binary tree; 1 means that the
            order of the sum is unknown, which allows one chain over all terms.
        exp_ulps, pow_ulps, trig_ulps: largest errors of exp, pow, and sin and cos, in ulps.
        cache: element type through which keys and values pass, or None when they stay as they are.
    """

    unit: float
    lanes: int
    exp_ulps: float
    pow_ulps: float
    trig_ulps: float
    cache: type | None = None

    def gamma(self, terms: int, extra: int = 0) -> float:
        """Relative change of a term of a sum of ``terms`` products, ``extra`` roundings later.

        The last part is the error of the float64 yardstick, whose order of sums is unknown.
        """
        joins = (self.lanes - 1).bit_length() if terms else 0
        total = -(-terms // self.lanes) + joins + extra
        return total * self.unit / (1 - total * self.unit) + (terms + extra) * 2 * UNIT64


#: 16 logical lanes, one fused multiply-add chain each, joined by a tree of four additions. exp
#: stays within 1 ulp (native/cpu/simd/vec.h), pow, sin and cos are rounded from more digits.
KESTREL = Arithmetic(UNIT32, lanes=16, exp_ulps=1, pow_ulps=1, trig_ulps=1)
#: torch on a CPU: BLAS with an unknown order of sums; softmax uses exp_u20 ("ULP=20"), the tables
#: Sleef's powf_u10 (1 ulp), cosf_u35 and sinf_u35 (3.5 ulps): ATen/cpu/vec/vec256_float.h.
REFERENCE = Arithmetic(UNIT32, lanes=1, exp_ulps=20, pow_ulps=1, trig_ulps=3.5)
#: The same code run in float64 (the rotary tables stay float32, as transformers computes them).
REFERENCE_FLOAT64 = Arithmetic(UNIT64, lanes=1, exp_ulps=20, pow_ulps=1, trig_ulps=3.5)


def exact(value: Array) -> Bounded:
    """A value that is copied or widened, so that not one bit may differ."""
    value = np.asarray(value, np.float64)
    return value, np.zeros_like(value)


def linear(x: Array, weight: Array, bias: Array | None, how: Arithmetic) -> Bounded:
    """``x @ weight.T + bias`` for x [N, I], weight [O, I], bias [O] or None; gives [N, O].

    A product passes through the roundings of its chain and tree (a fused multiply-add rounds
    once; a separate product and sum round a term at most as often as the chain is long, plus
    one), then through the bias. The bound is that many units of ``|x| @ |weight|.T + |bias|``.
    """
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    factor = how.gamma(x.shape[-1], 1 + (bias is not None))
    value = np.empty((x.shape[0], weight.shape[0]))
    bound = np.empty_like(value)
    for start in range(0, weight.shape[0], ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rows = np.asarray(weight[part], np.float64)
        value[:, part] = x @ rows.T
        bound[:, part] = size @ np.abs(rows).T
    if bias is not None:
        value += np.asarray(bias, np.float64)
        bound += np.abs(np.asarray(bias, np.float64))
    return value, bound * factor + TINY


def residual(x: Array, y: Array, how: Arithmetic) -> Bounded:
    """``x + y``: one rounding."""
    value = np.asarray(x, np.float64) + np.asarray(y, np.float64)
    return value, np.abs(value) * how.gamma(0, 1)


def rms_norm(x: Array, weight: Array, eps: float, how: Arithmetic) -> Bounded:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last axis of x [N, C].

    The sum of squares has no cancellation: its relative error is that of one term. Square (1),
    mean (1), eps as float32 (1) and its addition (1) come on top, and the root halves the lot.
    Then root, division and two products round (4).
    """
    x = np.asarray(x, np.float64)
    value = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    value *= np.asarray(weight, np.float64)
    relative = how.gamma(x.shape[-1], 4) / 2 + how.gamma(0, 4)
    return value, np.abs(value) * (relative * (1 + relative)) + TINY


def rotary(
    positions: Array, half: int, parameters: Mapping[str, object], how: Arithmetic
) -> tuple[Bounded, Bounded]:
    """cos and sin of position times frequency, each [N, D/2] with its bound; ``half`` is D/2.

    ``parameters`` is the ``rope_parameters`` block of a config: rope_theta, rope_type and what
    the type needs. transformers computes ``1 / theta ** (2 i / D)``, scales it and multiplies by
    the position in float32. So the frequency carries the exponent's rounding (which pow magnifies
    by ln(theta) times the exponent), theta's, pow's and the reciprocal's, and scaling adds its
    own. The llama3 blend's weight ``(L / wavelength - low) / (high - low)`` has an absolute error
    of at most ``high / (high - low)`` times its five roundings and the frequency's; four
    roundings follow. Scaling only lowers a frequency, so the unscaled one gives the error's size.
    """
    theta = float(parameters["rope_theta"])
    exponent = np.arange(half) / half
    plain = theta**-exponent
    error = 1 + exponent * (1 + np.log(theta)) + 2 * how.pow_ulps
    error[0] = 0.0  # theta ** 0 is 1 exactly
    frequency = plain
    if parameters["rope_type"] == "linear":
        frequency = plain / parameters["factor"]
        error = error + 1
    elif parameters["rope_type"] == "llama3":
        low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
        turns = parameters["original_max_position_embeddings"] * plain / (2 * np.pi)
        blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequency = plain * (blend + (1 - blend) / parameters["factor"])
        error = error + high / (high - low) * (5 + error) + 4
    elif parameters["rope_type"] != "default":
        raise ValueError(
            f"rope_type: expected default, linear or llama3, found {parameters['rope_type']!r}"
        )
    positions = np.asarray(positions, np.float64)[:, None]
    angle = positions * frequency
    # transformers keeps the tables in float32 even in a float64 model: UNIT32 for every `how`.
    angle_error = UNIT32 * positions * (plain * error + frequency)

    def bounded(table: Array) -> Bounded:
        return table, angle_error + UNIT32 * 2 * how.trig_ulps * np.abs(table) + TINY

    return bounded(np.cos(angle)), bounded(np.sin(angle))


def rope(x: Array, cos: Array, sin: Array, heads: int, how: Arithmetic) -> Bounded:
    """Rotate the halves of each head of x [N, heads * D] by the tables cos, sin [N, D/2].

    ``(a cos - b sin, b cos + a sin)`` for a head's first half a and second half b, as
    ``apply_rotary_pos_emb`` of transformers: one product and one sum on each path.
    """
    x = np.asarray(x, np.float64)
    first, second = np.split(x.reshape(len(x), heads, -1), 2, axis=-1)
    cos, sin = (np.asarray(t, np.float64)[:, None, :] for t in (cos, sin))
    value = np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)
    cos, sin, first, second = (np.abs(t) for t in (cos, sin, first, second))
    size = np.concatenate((first * cos + second * sin, second * cos + first * sin), axis=-1)
    return value.reshape(x.shape), size.reshape(x.shape) * how.gamma(0, 2) + TINY


def swiglu(gate: Array, up: Array, how: Arithmetic) -> Bounded:
    """``gate / (1 + exp(-gate)) * up``: exp, sum, quotient (or reciprocal, product), product."""
    gate, up = np.asarray(gate, np.float64), np.asarray(up, np.float64)
    value = gate * np.exp(-np.logaddexp(0.0, -gate)) * up
    relative = how.gamma(0, 4) + 2 * how.exp_ulps * how.unit * (1 + how.gamma(0, 4))
    return value, np.abs(value) * (relative * (1 + relative)) + TINY * (1 + np.abs(up))


def attention(
    q: Array, k: Array, v: Array, heads: int, kv_heads: int, how: Arithmetic
) -> Bounded:
    """Causal softmax(q kT / sqrt(D)) v for q [N, H * D] and k, v [N, K * D]; gives [N, H * D].

    Query head h reads kv head ``h // (H / K)``. An absolute error of a score is a relative error
    of its weight; ``eta`` collects it: the dot product with its scale, the subtractions of the
    running maximum, and per block of the cache one exp and one product of rescaling. Numerator
    and denominator then sum over the context T, and three roundings normalise.
    """
    tokens, group = len(q), heads // kv_heads
    q = np.asarray(q, np.float64).reshape(tokens, heads, -1)
    k, v = (
        np.asarray(rows.astype(how.cache or rows.dtype), np.float64).reshape(tokens, kv_heads, -1)
        for rows in (k, v)
    )
    scale = q.shape[-1] ** -0.5
    context = np.arange(1, tokens + 1)[:, None]
    blocks = -(-context // BLOCK)
    hidden = np.triu(np.ones((tokens, tokens), bool), 1)
    # A sum over T terms in blocks: T roundings, one a block for rescaling, one product.
    sums = (context + blocks + 1) * (how.unit + 2 * UNIT64)
    sums = sums / (1 - sums)
    value, bound = np.empty_like(q), np.empty_like(q)
    for head in range(heads):
        keys, values = k[:, head // group], v[:, head // group]
        score = q[:, head] @ keys.T * scale
        error = np.abs(q[:, head]) @ np.abs(keys).T * scale * how.gamma(q.shape[-1], 2)
        top = np.where(hidden, -np.inf, score).max(axis=1, keepdims=True)
        low = np.where(hidden, np.inf, score).min(axis=1, keepdims=True)
        spread = top - low + 2 * np.where(hidden, 0.0, error).max(axis=1, keepdims=True)
        per_block = (2 * how.exp_ulps + 1) * how.unit * (1 + blocks)
        weight = np.where(hidden, 0.0, np.exp(np.where(hidden, 0.0, score - top)))
        weight /= weight.sum(axis=1, keepdims=True)
        eta = np.expm1(error + 2 * how.unit * spread + per_block)
        eta = weight * (eta + sums + eta * sums)
        out = weight @ values
        above, below = eta @ np.abs(values), eta.sum(axis=1, keepdims=True)
        total = (above + np.abs(out) * below) / (1 - below)
        value[:, head] = out
        bound[:, head] = total + how.gamma(0, 3) * (np.abs(out) + total) + TINY
    return value.reshape(tokens, -1), bound.reshape(tokens, -1)
