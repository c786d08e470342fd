"""Values: the arrays that commands read and write, with their axes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from kestrel.dtypes import Dtype

__all__ = ["Axis", "Dim", "Shape", "Storage", "Value"]


class Dim(Enum):
    """An axis whose length is known only when a step is submitted."""

    TOKENS = "N"
    SEQUENCES = "S"
    LOGIT_ROWS = "L"


class Storage(Enum):
    """Where a value lives, and so who owns its memory."""

    INPUT = "input"  # an int32 array of StepInputs, written by the host before each step
    WEIGHT = "weight"  # adopted from the checkpoint, or a constant computed at load
    CACHE = "cache"  # one layer's keys and values, alive between steps
    SCRATCH = "scratch"  # a range of the arena, alive from its first write to its last read
    OUTPUT = "output"  # readable by the host after a step


Axis = Union[Dim, int]
Shape = tuple[Axis, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """One array of a program; compared by identity.

    ``source`` is a TensorView for weights, the field's name in StepInputs for inputs, a Buffer for
    the cache, and None otherwise.
    """

    name: str
    storage: Storage
    dtype: Dtype
    shape: Shape
    source: object = None

    def elements(self, sizes: dict[Dim, int]) -> int:
        """Number of elements when the symbolic axes have the given lengths."""
        count = 1
        for axis in self.shape:
            count *= sizes[axis] if isinstance(axis, Dim) else axis
        return count

    def nbytes(self, sizes: dict[Dim, int]) -> int:
        """Bytes when the symbolic axes have the given lengths."""
        return self.elements(sizes) * self.dtype.size

    @property
    def width(self) -> int:
        """Elements of one row: the product of all axes but the first."""
        count = 1
        for axis in self.shape[1:]:
            if isinstance(axis, Dim):
                raise TypeError(f"{self.name}: only the first axis may be symbolic")
            count *= axis
        return count

    def __str__(self) -> str:
        axes = ", ".join(axis.value if isinstance(axis, Dim) else str(axis) for axis in self.shape)
        return f"{self.name}:{self.dtype.value}[{axes}]"
