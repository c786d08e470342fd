"""Element types of tensors, under the names that safetensors files use."""

from __future__ import annotations

from enum import Enum

__all__ = ["Dtype", "WEIGHT_DTYPES"]


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

    @property
    def code(self) -> int:
        """The number that stands for this type in native/include/kestrel/args.h."""
        return _CODES[self]

    @classmethod
    def from_name(cls, name: str) -> "Dtype":
        """Accept ``float32``, ``torch.bfloat16``, ``BF16``. Raises ValueError on others."""
        short = name.removeprefix("torch.")
        try:
            return _LONG_NAMES[short] if short in _LONG_NAMES else cls(short)
        except ValueError:
            known = ", ".join([*_LONG_NAMES, *(member.value for member in cls)])
            raise ValueError(f"unknown dtype {name!r}: expected one of {known}") from None


_SIZES = {Dtype.F32: 4, Dtype.F16: 2, Dtype.BF16: 2, Dtype.I32: 4}
_CODES = {Dtype.F32: 0, Dtype.F16: 1, Dtype.BF16: 2, Dtype.I32: 3}
_LONG_NAMES = {
    "float32": Dtype.F32,
    "float16": Dtype.F16,
    "bfloat16": Dtype.BF16,
    "int32": Dtype.I32,
}

#: What a checkpoint's weights may be stored as.
WEIGHT_DTYPES = (Dtype.F32, Dtype.F16, Dtype.BF16)
