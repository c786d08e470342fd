"""The operations of a decoder layer, each in float64 with its bound."""

from __future__ import annotations

import numpy as np

from kestrel.bounds.arithmetic import TINY, UNIT64, Arithmetic, Array, Bounded

__all__ = ["attention", "exact", "geglu", "linear", "residual", "rms_norm", "scaled", "soft_cap"]
__all__ += ["swiglu"]

#: Cache positions per block: attention rescales its running sum at most once a block.
BLOCK = 16
#: Rows of a weight widened to float64 at a time, so that a large head needs little memory.
ROWS_AT_ONCE = 4096


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


def scaled(x: Array, scale: float, how: Arithmetic) -> Bounded:
    """``scale * x``: one rounding, and one more where scale is no float32 value."""
    value = np.asarray(x, np.float64) * scale
    return value, np.abs(value) * how.gamma(0, 1 + _inexact(scale)) * (scale != 1)


def residual(x: Array, y: Array, how: Arithmetic, scale: float = 1.0) -> Bounded:
    """``x + scale * y``: one rounding of the sum, after those of the product."""
    y, product = scaled(y, scale, how)
    value = np.asarray(x, np.float64) + y
    return value, product + (np.abs(value) + product) * how.gamma(0, 1)


def rms_norm(
    x: Array, weight: Array, eps: float, how: Arithmetic, offset: float = 0.0
) -> Bounded:
    """``(offset + weight) * x / sqrt(mean(x**2) + eps)`` over each run of ``len(weight)`` columns.

    x is [N, groups * W] for weight [W]: whole rows, or the heads of queries and keys. The sum of
    squares has no cancellation: its relative error is that of one term. Square (1), mean (1), eps
    as float32 (1) and its addition (1) come on top, and the root halves the lot. Then root,
    division and two products round (4), and the sum with an offset (1).
    """
    weight = np.asarray(weight, np.float64) + offset
    runs = np.asarray(x, np.float64).reshape(len(x), -1, len(weight))
    value = runs / np.sqrt(np.mean(runs * runs, axis=-1, keepdims=True) + eps) * weight
    value = value.reshape(x.shape)
    relative = how.gamma(len(weight), 4) / 2 + how.gamma(0, 4 + (offset != 0))
    return value, np.abs(value) * (relative * (1 + relative)) + TINY


def swiglu(gate: Array, up: Array, how: Arithmetic) -> Bounded:
    """``gate / (1 + exp(-gate)) * up``: exp, sum, quotient (or reciprocal, product), product."""
    gate, up = np.asarray(gate, np.float64), np.asarray(up, np.float64)
    value = gate * np.exp(-np.logaddexp(0.0, -gate)) * up
    relative = how.gamma(0, 4) + 2 * how.exp_ulps * how.unit * (1 + how.gamma(0, 4))
    return value, np.abs(value) * (relative * (1 + relative)) + TINY * (1 + np.abs(up))


def geglu(gate: Array, up: Array, how: Arithmetic) -> Bounded:
    """``gate / 2 * (1 + tanh(z)) * up`` with ``z = sqrt(2 / pi) * (gate + 0.044715 * gate**3)``.

    Both terms of z have one sign, so its relative error is that of the longer path: cube (2),
    constant and product (2), sum (1), constant and product (2). Where tanh is near -1, its error
    is large beside ``1 + tanh``, so it is counted absolutely, as half of it in ``(1 + tanh) / 2``.
    An implementation may as well take the same value as ``1 / (1 + exp(-2 z))``, with the error of
    exp and of a quotient. Sum, quotient and two or three products round (5).
    """
    gate, up = np.asarray(gate, np.float64), np.asarray(up, np.float64)
    z = np.sqrt(2 / np.pi) * np.abs(gate + 0.044715 * gate**3)
    half = 1 / (1 + np.exp(-2 * np.minimum(z, 300)))  # (1 + tanh(z)) / 2
    half = np.where(gate < 0, np.exp(-2 * np.minimum(z, 300)) * half, half)
    drift = how.gamma(0, 7)
    error = np.tanh(z * (1 + drift)) - np.tanh(z * (1 - drift))
    error = error / 2 + how.ulps(how.tanh_ulps) / 2 + half * how.ulps(how.exp_ulps)
    error = error + (half + error) * how.gamma(0, 5)
    size = np.abs(gate * up)
    return gate * half * up, size * error + TINY * (1 + np.abs(up))


def soft_cap(x: Array, scale: float, cap: float | None, how: Arithmetic) -> Bounded:
    """``cap * tanh(scale * x / cap)``, or ``scale * x`` without a cap.

    tanh never magnifies a relative error, because it is concave from 0 on:
    ``tanh((1 + e) z) <= (1 + e) tanh(z)`` for z, e > 0. So those of its argument stay what they
    are: scale and product, or its reciprocal and a quotient (3), cap and quotient (3 likewise). The
    product with the cap, rounded too, follows (2).
    """
    value = np.asarray(x, np.float64) * scale
    if cap is None:
        return value, np.abs(value) * how.gamma(0, 3 * (scale != 1))
    value = cap * np.tanh(value / cap)
    return value, np.abs(value) * _capping(how, 3 * (scale != 1)) + TINY


def _capping(how: Arithmetic, before: int) -> float:
    """Relative error of ``cap * tanh(x / cap)`` by its own roundings and ``before`` in x."""
    rounding, tanh = how.gamma(0, before + 5), how.ulps(how.tanh_ulps)
    return rounding + tanh + rounding * tanh


def _inexact(constant: float) -> bool:
    return float(np.float32(constant)) != constant


def attention(
    q: Array,
    k: Array,
    v: Array,
    heads: int,
    kv_heads: int,
    how: Arithmetic,
    scale: float | None = None,
    window: int | None = None,
    cap: float | None = None,
) -> Bounded:
    """softmax(s) v for q [N, H * D] and k, v [N, K * D]; gives [N, H * D].

    ``s = q kT * scale`` (default: ``D ** -0.5``), or ``cap * tanh(s / cap)``. The token at p sees
    the positions j <= p, of which j > p - window. Query head h reads kv head ``h // (H / K)``.

    An absolute error of a score is a relative error of its weight; ``eta`` collects it: the dot
    product with its scale, the subtractions of the running maximum, and per block of the cache one
    exp and one product of rescaling. Capping is a contraction (its slope is at most 1), so it
    hands on the score's error at most, and adds its own. Numerator and denominator then sum over
    the context T, and three roundings normalise.
    """
    tokens, group = len(q), heads // kv_heads
    q = np.asarray(q, np.float64).reshape(tokens, heads, -1)
    k, v = (
        np.asarray(rows.astype(how.cache or rows.dtype), np.float64).reshape(tokens, kv_heads, -1)
        for rows in (k, v)
    )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    last = np.arange(tokens)[:, None]
    first = np.maximum(0, last + 1 - (window or tokens))
    blocks = last // BLOCK - first // BLOCK + 1
    hidden = (last.T > last) | (last.T < first)
    # A sum over T terms in blocks: T roundings, one a block for rescaling, one product.
    sums = (last + 1 - first + blocks + 1) * (how.unit + 2 * UNIT64)
    sums = sums / (1 - sums)
    value, bound = np.empty_like(q), np.empty_like(q)
    for head in range(heads):
        keys, values = k[:, head // group], v[:, head // group]
        score = q[:, head] @ keys.T * scale
        error = np.abs(q[:, head]) @ np.abs(keys).T * abs(scale) * how.gamma(q.shape[-1], 2)
        if cap is not None:
            score = cap * np.tanh(score / cap)
            error = error + np.abs(score) * _capping(how, 0)
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
