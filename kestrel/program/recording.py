"""What every operation of the Recorder is written down with: names, weights, taps, commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.errors import ShapeError
from kestrel.program.program import Command
from kestrel.program.trace import TraceSpec
from kestrel.program.values import Dim, Shape, Storage, Value

if TYPE_CHECKING:
    import numpy

__all__ = ["Recording", "StepValues"]


@dataclass(frozen=True)
class StepValues:
    """The int32 arrays that change from step to step."""

    token_ids: Value  # [N] ids to embed
    positions: Value  # [N] absolute position of each token
    rope_lengths: Value  # [N] length of the sequence by which each token is rotated
    slots: Value  # [N] where each token's key and value go: block * 16 + offset
    seq_start: Value  # [S + 1] prefix sums of tokens per sequence
    context_len: Value  # [S] positions visible to the last new token
    block_table: Value  # [S, max_blocks] physical blocks
    logit_rows: Value  # [L] rows whose logits are wanted


class Recording:
    """A program being written. ``maxima`` bound the symbolic axes, ``max_blocks`` a block table's
    row."""

    def __init__(
        self, maxima: dict[Dim, int], max_blocks: int, trace: TraceSpec | None = None
    ) -> None:
        def of(name: str, *shape: Dim | int) -> Value:
            return Value(name, Storage.INPUT, Dtype.I32, shape, source=name)

        self.inputs = StepValues(
            token_ids=of("token_ids", Dim.TOKENS),
            positions=of("positions", Dim.TOKENS),
            rope_lengths=of("rope_lengths", Dim.TOKENS),
            slots=of("slots", Dim.TOKENS),
            seq_start=of("seq_start", Dim.SEQUENCES),
            context_len=of("context_len", Dim.SEQUENCES),
            block_table=of("block_table", Dim.SEQUENCES, max_blocks),
            logit_rows=of("logit_rows", Dim.LOGIT_ROWS),
        )
        self._maxima = dict(maxima)
        self._max_blocks = max_blocks
        self._trace = trace
        self._prefix = ""
        self._commands: list[Command] = []
        self._weights: dict[int, Value] = {}
        self._taps: dict[str, Value] = {}

    @property
    def is_traced(self) -> bool:
        """Whether stages are looked at: all rows of each, also those that no logits need."""
        return self._trace is not None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Put ``name`` before the names used inside the block."""
        outer = self._prefix
        self._prefix = self._full(name)
        try:
            yield
        finally:
            self._prefix = outer

    def _record(
        self,
        operation: str,
        name: str,
        inputs: tuple[Value | None, ...],
        shapes: list[Shape],
        names: tuple[str, ...] | None = None,
        **attributes: object,
    ) -> tuple[Value, ...]:
        stages = [self._full(part) for part in names or (name,)]
        outputs = tuple(
            Value(stage, Storage.SCRATCH, Dtype.F32, shape) for stage, shape in zip(stages, shapes)
        )
        self._commands.append(
            Command(operation, self._full(name), inputs, outputs, attributes)
        )
        for value in outputs:
            self._tap(value)
        return outputs

    def _tap(self, value: Value) -> None:
        if self._trace is None or not self._trace.matches(value.name):
            return
        copy = Value(value.name, Storage.OUTPUT, value.dtype, value.shape)
        self._commands.append(
            Command("copy", value.name, (value,), (copy,), {"dim": value.width})
        )
        self._taps[value.name] = copy

    def _weight(self, tensor: TensorView) -> Value:
        # A tied lm_head is the embedding's own TensorView: one Value, adopted once.
        known = self._weights.get(id(tensor))
        if known is None:
            known = Value(tensor.name, Storage.WEIGHT, tensor.dtype, tensor.shape, source=tensor)
            self._weights[id(tensor)] = known
        return known

    def _constant(self, name: str, array: "numpy.ndarray") -> Value:
        data = memoryview(array).cast("B").toreadonly()
        return self._weight(TensorView(name, Dtype.F32, array.shape, data, Path("(computed)"), 0))

    def _full(self, name: str) -> str:
        return ".".join(part for part in (self._prefix, name) if part)

    def _require(self, name: str, what: str, found: Shape, expected: Shape) -> None:
        if found != expected:
            raise ShapeError(f"{self._full(name)}: expected {what} {expected}, found {found}")
