"""The operations of a decoder layer, each in float64 with its bound."""

from __future__ import annotations

import numpy as np

from kestrel.bounds.arithmetic import TINY, UNIT64, Arithmetic, Array, Bounded

__all__ = ["attention", "exact", "linear", "residual", "rms_norm", "swiglu"]

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
