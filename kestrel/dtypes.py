"""Element types of tensors, under the names that safetensors files use."""

from __future__ import annotations

from enum import Enum

__all__ = ["FLOAT32_MAX", "FLOAT32_TINY", "Dtype", "WEIGHT_DTYPES"]

#: The largest and the smallest normal float32.
FLOAT32_MAX, FLOAT32_TINY = (2 - 2**-23) * 2.0**127, 2.0**-126


class Dtype(Enum):
    """An element type. ``value`` is the name in a safetensors header.

    NumPy has no bfloat16, so weights travel as bytes plus one of these.
    """

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    I32 = "I32"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return _SIZES[self]


_SIZES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2, Dtype.I32: 4}

#: What a checkpoint's weights may be stored as.
WEIGHT_DTYPES = (Dtype.F32, Dtype.F16, Dtype.BF16)
