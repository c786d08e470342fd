"""How an implementation rounds, and the units that its bounds are counted in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Arithmetic", "Array", "Bounded", "KESTREL", "REFERENCE", "REFERENCE_FLOAT64", "TINY"]
__all__ += ["UNIT32", "UNIT64"]

Array = np.ndarray
Bounded = tuple[Array, Array]

#: Unit roundoff of float32 and of float64.
UNIT32, UNIT64 = 2.0**-24, 2.0**-53
#: Below the normal range of float32 an operation loses up to this much outright. exp(-x) leaves
#: the range at |x| = 88, so swiglu may flush 88 * 2**-126 < 2**-119 to zero.
TINY = 2.0**-119

@dataclass(frozen=True)
class Arithmetic:
    """How an implementation rounds.

    Attributes:
        unit: unit roundoff of its additions and products.
        lanes: a sum is this many chains in parallel, joined by a binary tree; 1 means that the
            order of the sum is unknown, which allows one chain over all terms.
        exp_ulps, pow_ulps, trig_ulps, tanh_ulps: largest errors of exp, pow, sin and cos, and tanh,
            in ulps.
        cache: element type through which keys and values pass, or None when they stay as they are.
    """

    unit: float
    lanes: int
    exp_ulps: float
    pow_ulps: float
    trig_ulps: float
    tanh_ulps: float
    cache: type | None = None

    def gamma(self, terms: int, extra: int = 0) -> float:
        """Relative change of a term of a sum of ``terms`` products, ``extra`` roundings later.

        The last part is the error of the float64 yardstick, whose order of sums is unknown.
        """
        joins = (self.lanes - 1).bit_length() if terms else 0
        total = -(-terms // self.lanes) + joins + extra
        return total * self.unit / (1 - total * self.unit) + (terms + extra) * 2 * UNIT64

    def ulps(self, count: float) -> float:
        """Relative error of a function's value that is off by ``count`` units in the last place:
        twice the unit roundoff each, and as much for the float64 yardstick's own function."""
        return 2 * count * (self.unit + UNIT64)


#: 16 logical lanes, one fused multiply-add chain each, joined by a tree of four additions. exp
#: stays within 1 ulp (native/cpu/simd/vec.h), pow, sin and cos are rounded from more digits.
KESTREL = Arithmetic(UNIT32, lanes=16, exp_ulps=1, pow_ulps=1, trig_ulps=1, tanh_ulps=1)
#: torch on a CPU: BLAS with an unknown order of sums; softmax uses exp_u20 ("ULP=20"), the tables
#: Sleef's powf_u10 (1 ulp), cosf_u35 and sinf_u35 (3.5 ulps), caps and GELU tanhf_u10 (1 ulp):
#: ATen/cpu/vec/vec256_float.h.
REFERENCE = Arithmetic(UNIT32, lanes=1, exp_ulps=20, pow_ulps=1, trig_ulps=3.5, tanh_ulps=1)
#: The same code run in float64 (the rotary tables stay float32, as transformers computes them).
REFERENCE_FLOAT64 = replace(REFERENCE, unit=UNIT64)
