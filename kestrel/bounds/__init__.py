"""What float32 arithmetic may do to one operation: its exact value and an elementwise bound.

Every function takes the inputs that an implementation saw and returns ``(value, bound)``, both
float64: the operation evaluated in float64, and the largest distance from it that an
implementation with the given `Arithmetic` can reach. Nothing here is tuned. The bounds are worst
cases of the standard model of floating point, ``fl(a op b) = (a op b)(1 + d)`` with ``|d| <= u``
(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 2.2 to 3.4), in
which n roundings on the way to a term change it by at most ``gamma(n) = n u / (1 - n u)``.

Letters: N tokens, H query heads, K kv heads, D head_dim, I inputs, O outputs of a linear.
"""

from kestrel.bounds.arithmetic import (
    KESTREL,
    REFERENCE,
    REFERENCE_FLOAT64,
    Arithmetic,
    Array,
    Bounded,
)
from kestrel.bounds.operations import (
    attention,
    exact,
    geglu,
    linear,
    residual,
    rms_norm,
    scaled,
    soft_cap,
    swiglu,
)
from kestrel.bounds.rotary import rope, rotary

__all__ = [
    "Arithmetic",
    "Array",
    "Bounded",
    "KESTREL",
    "REFERENCE",
    "REFERENCE_FLOAT64",
    "attention",
    "exact",
    "geglu",
    "linear",
    "residual",
    "rms_norm",
    "rope",
    "rotary",
    "scaled",
    "soft_cap",
    "swiglu",
]
