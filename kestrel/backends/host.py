"""What the backends that live in host memory share: step arrays, output arrays, eager checks."""

from __future__ import annotations

import numpy

from kestrel.backends.base import StepInputs
from kestrel.dtypes import Dtype
from kestrel.errors import NumericalError
from kestrel.integers import counted
from kestrel.program.program import Program
from kestrel.program.values import Dim, Value

__all__ = ["HostBuffer", "check_finite", "host_array", "make_step_inputs"]

_NUMPY = {Dtype.F32: numpy.float32, Dtype.F16: numpy.float16, Dtype.I32: numpy.int32}


class HostBuffer:
    """Zeroed host memory; numpy.zeros leaves untouched pages uncommitted."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bytes = numpy.zeros(nbytes, dtype=numpy.uint8)  # [nbytes]

    def read(self, offset: int, into: memoryview) -> None:
        """Copy ``into.nbytes`` bytes at ``offset`` out."""
        into.cast("B")[:] = self.bytes[offset : offset + into.nbytes].data

    def write(self, offset: int, data: memoryview) -> None:
        """Copy host bytes in at ``offset``."""
        self.bytes[offset : offset + data.nbytes] = numpy.frombuffer(data, dtype=numpy.uint8)


def host_array(value: Value, maxima: dict[Dim, int]) -> "numpy.ndarray":
    """A zeroed array of the value's full shape."""
    shape = [maxima[axis] if isinstance(axis, Dim) else axis for axis in value.shape]
    return numpy.zeros(shape, dtype=_NUMPY[value.dtype])


def make_step_inputs(program: Program) -> StepInputs:
    """The int32 arrays of a program, at its maxima."""
    n, s, rows = (
        program.maxima[dim] for dim in (Dim.TOKENS, Dim.SEQUENCES, Dim.LOGIT_ROWS)
    )
    return StepInputs(
        token_ids=numpy.zeros(n, dtype=numpy.int32),
        positions=numpy.zeros(n, dtype=numpy.int32),
        rope_lengths=numpy.zeros(n, dtype=numpy.int32),
        slots=numpy.zeros(n, dtype=numpy.int32),
        seq_start=numpy.zeros(s + 1, dtype=numpy.int32),
        context_len=numpy.zeros(s, dtype=numpy.int32),
        block_table=numpy.zeros((s, program.max_blocks), dtype=numpy.int32),
        logit_rows=numpy.zeros(rows, dtype=numpy.int32),
    )


def check_finite(name: str, values: "numpy.ndarray") -> None:
    """Raise NumericalError with the name and the first place unless all [M, width] are finite."""
    bad = numpy.argwhere(~numpy.isfinite(values))
    if len(bad):
        row, column = bad[0]
        raise NumericalError(
            f"{name}: {counted(len(bad), 'value')} not finite, the first in row {row} of the step, "
            f"column {column}; every stage before it was finite"
        )
