"""What ``kestrel._ops`` computes over a row of logits, in NumPy: its specification and stand-in.

The same bits everywhere, because a token must not depend on the machine. NumPy's own exp takes
whichever library or vector code the machine offers, and these differ in the last bit: enough to
turn a draw once in a while. Addition, subtraction and multiplication are exactly defined by
IEEE 754, and both NumPy and the extension round after each, so what is built from them is the same.
"""

from __future__ import annotations

import numpy as np

__all__ = ["exp2_nonpositive", "mass", "top_candidates", "tree_sum", "weigh"]

#: Logits added up as a tree in ``mass``; the sums of these follow each other.
PART = 512

#: Adding it to a number rounds that to the nearest integer, which the sum's low bits hold.
_MAGIC = 1.5 * 2.0**52
#: Above -1021.5 the result is a normal number; what is not cannot move a sum of at least 1.
_LOWEST = -1022.0
# Of (2**r - 1) / r, from the highest power down: the polynomial of degree 10 that interpolates it
# at Chebyshev's nodes in [-1/2, 1/2]; its error is 2**-55 of 2**r.
_COEFFICIENTS = (
    4.4549605981865186e-10,
    7.072585949269223e-09,
    1.0178062445845774e-07,
    1.321544258792169e-06,
    1.525273382983612e-05,
    0.0001540353044173605,
    0.0013333558146416936,
    0.009618129107606888,
    0.0555041086648216,
    0.24022650695910097,
    0.6931471805599453,
)


def top_candidates(row: np.ndarray, ids: np.ndarray, values: np.ndarray) -> int:
    """Fill int32 ``ids`` and float32 ``values`` with the highest of float32 logits [V] without NaN.

    Descending, equals by ascending id. Returns how many: as many as fit, V at most.
    """
    k = min(len(ids), len(row))
    if k < len(row):
        border = np.partition(row, len(row) - k)[len(row) - k]
        above = np.flatnonzero(row > border)
        equal = np.flatnonzero(row == border)[: k - len(above)]
        found = np.concatenate([above, equal])
    else:
        found = np.arange(k)
    # Ids ascend within each group of equal logits, and a stable sort keeps them so.
    ids[:k] = found[np.argsort(-row[found], kind="stable")]
    values[:k] = row[ids[:k]]
    return k


def weigh(logits: np.ndarray, scale: float, weights: np.ndarray, sums: np.ndarray) -> None:
    """Fill float64 ``weights`` with ``2**((logit - logits[0]) * scale)``, ``sums`` with their sums.

    Args:
        logits: float32 [k], the first one finite and the highest.
        scale: above 0.
        weights: [k].
        sums: [k]; the weights added up one by one, first to last.
    """
    weights[:] = exp2_nonpositive((logits.astype(np.float64) - float(logits[0])) * scale)
    np.add.accumulate(weights, out=sums)


def mass(row: np.ndarray, highest: float, scale: float) -> float:
    """The sum of ``2**((logit - highest) * scale)`` over float32 logits [V]; float64.

    Args:
        row: finite or -inf.
        highest: finite; no logit is above it.
        scale: above 0.
    """
    total = 0.0
    for start in range(0, len(row), PART):
        part = row[start : start + PART].astype(np.float64)
        total += tree_sum(exp2_nonpositive((part - highest) * scale))
    return total


def exp2_nonpositive(z: np.ndarray) -> np.ndarray:
    """2**z for float64 z <= 0 (-inf too), within 1.25 units in the last place; 0 from -1021.5 down.

    z = k + r with an integer k and abs(r) <= 1/2; a polynomial gives 2**r, and k is added to its
    exponent.
    """
    z = np.maximum(z, _LOWEST)
    shifted = z + _MAGIC
    k = shifted - _MAGIC
    r = z - k
    y = np.full_like(z, _COEFFICIENTS[0])
    for coefficient in (*_COEFFICIENTS[1:], 1.0):
        y = y * r + coefficient
    y = (y.view(np.int64) + (shifted.view(np.int64) << 52)).view(np.float64)
    return np.where(k < _LOWEST + 1.0, 0.0, y)


def tree_sum(x: np.ndarray) -> float:
    """The sum of a one-dimensional float64 array, halves added onto each other down to one number.

    The order of additions is fixed by the length alone; the rounding error is at most
    log2(n) * 2**-53 of the sum of magnitudes.
    """
    while len(x) > 1:
        half = len(x) // 2
        folded = x[:half] + x[half : 2 * half]
        if len(x) % 2:
            folded[0] += x[-1]
        x = folded
    return float(x[0]) if len(x) else 0.0
