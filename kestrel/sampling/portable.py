"""exp and sums in float64 whose bits do not depend on the platform.

NumPy's own exp takes whichever library or vector code the machine offers, and these differ in the
last bit: enough to turn a draw once in a while. Addition, subtraction, multiplication and division
are exactly defined by IEEE 754, and NumPy rounds after each, so what is built from them is the same
everywhere.
"""

from __future__ import annotations

import numpy as np

__all__ = ["exp_nonpositive", "tree_sum"]

_LOG2_E = 1.44269504088896338700
# ln 2 in two parts: the first has 32 zero bits at its end, so that k * _LN2_HIGH is exact.
_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_COEFFICIENTS = (
    4.13813679705723846039e-08,
    -1.65339022054652515390e-06,
    6.61375632143793436117e-05,
    -2.77777777770155933842e-03,
    1.66666666666666019037e-01,
)
#: exp(-708) is the last that is not subnormal; what is below cannot move a sum of at least 1.
_LOWEST = -708.0


def exp_nonpositive(x: np.ndarray) -> np.ndarray:
    """e**x for float64 x <= 0 (any shape, -inf allowed), to less than one unit in the last place.

    Below -708 the result is 0. The method is that of ``e_exp.c`` in fdlibm (Sun Microsystems,
    1993): x = k ln 2 + r with |r| <= ln 2 / 2, a rational approximation of e**r, scaled by 2**k.
    """
    # In place as far as it goes: at this size making arrays costs as much as filling them.
    r = np.maximum(x, _LOWEST)
    k = r * _LOG2_E
    np.rint(k, out=k)
    high = k * _LN2_HIGH
    np.subtract(r, high, out=high)
    low = k * _LN2_LOW
    np.subtract(high, low, out=r)
    square = r * r
    poly = square * _COEFFICIENTS[0]
    for coefficient in _COEFFICIENTS[1:]:
        poly += coefficient
        poly *= square
    np.subtract(r, poly, out=poly)  # e**r = 1 - ((low - r * poly / (2 - poly)) - high)
    r *= poly
    np.subtract(2.0, poly, out=poly)
    r /= poly
    low -= r
    low -= high
    np.subtract(1.0, low, out=low)
    exponent = k.astype(np.int64)
    exponent += 1023  # the bits of 2**k, a normal number because k >= -1022
    exponent <<= 52
    low *= exponent.view(np.float64)
    low[x < _LOWEST] = 0.0
    return low


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
