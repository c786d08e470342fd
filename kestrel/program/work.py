"""The least that a step of a program has to do: what its speed is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel.program.values import Dim

if TYPE_CHECKING:
    from kestrel.program.program import Program

__all__ = ["Work", "step_work"]


@dataclass(frozen=True)
class Work:
    """Bytes that have to be read and floating-point operations, two a multiply-add."""

    nbytes: int = 0
    flops: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.nbytes + other.nbytes, self.flops + other.flops)


def step_work(program: "Program", tokens: int, first: int = 0, logit_rows: int = 1) -> Work:
    """The work of one step over ``tokens`` of one sequence, the first at position ``first``.

    Bytes: every weight once, and the keys and values that some token sees, once. Operations: those
    of the matrices, of the scores and of the sums over the values. The rest (norms, rotations, the
    rows of the embedding) is small beside them, and left out.
    """
    nbytes, flops = program.weight_bytes(), 0
    for command in program.commands:
        a = command.attributes
        if command.operation == "linear":
            rows = logit_rows if command.rows is Dim.LOGIT_ROWS else tokens
            flops += 2 * rows * a["in_features"] * sum(a["out_features"])
        elif command.operation == "attention":
            end = first + tokens
            window = a["window"] or end
            seen = sum(min(position + 1, window) for position in range(first, end))
            flops += 4 * a["heads"] * a["head_dim"] * seen
            visible = min(end, tokens + window - 1)
            element = command.inputs[1].dtype.size  # of the cache
            nbytes += 2 * a["kv_heads"] * a["head_dim"] * element * visible
    return Work(nbytes, flops)
