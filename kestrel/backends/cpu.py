"""The cpu backend: packs a Program into native commands over fixed addresses. Thin on purpose.

Weights are used where they lie: a matrix is the file's own mapping, aligned or not. Vectors (norm
weights, biases, inverse frequencies) are widened to float32 once, which costs kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy

from kestrel.backends.base import BackendInfo
from kestrel.backends.host import check_finite, make_step_inputs
from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.dtypes import WEIGHT_DTYPES, Dtype
from kestrel.errors import CapacityError, ConfigError, UnsupportedOperationError
from kestrel.processors import processor_name, processors
from kestrel.program.plan import plan
from kestrel.program.values import Dim, Storage, Value
from kestrel.runtime import MAX_THREADS, native_ops, settings

if TYPE_CHECKING:
    from kestrel._ops import CpuBuffer
    from kestrel.checkpoint.safetensors_file import TensorView
    from kestrel.program.program import Command, Program

__all__ = ["CpuBackend", "CpuExecutable", "NativeCommand", "Span"]

_NUMPY = {Dtype.F32: numpy.float32, Dtype.I32: numpy.int32}
_FLOATS = tuple(dtype.value for dtype in WEIGHT_DTYPES)
#: MAX_DIM of native/cpu/kernels/attention_tile.h.
MAX_HEAD_DIM = 512


class Span(NamedTuple):
    """``nbytes`` bytes at ``offset`` of an object with the buffer protocol."""

    owner: object
    offset: int
    nbytes: int


class NativeCommand(NamedTuple):
    """One kst_cmd (native/include/kestrel/abi.h), before it has addresses.

    ``dtype`` chooses the kernel. ``work_per_row`` counts multiply-adds: the interpreter cuts long
    commands by it, so that Ctrl-C is seen soon.
    """

    operation: str
    stage: str
    dtype: str
    inputs: tuple[Span | None, ...]
    outputs: tuple[Span, ...]
    attributes: Mapping[str, object]
    logit_rows: bool
    barrier: bool
    work_per_row: float


class CpuExecutable:
    """A compiled program. `submit` announces a step; `wait` computes it with the worker threads."""

    def __init__(self, backend: "CpuBackend", program: "Program") -> None:
        ops = native_ops()
        self._program = program
        self._maxima = dict(program.maxima)
        self._memory = plan(program)
        outputs = (program.logits, program.greedy, *program.taps.values())
        sizes = {id(value): value.nbytes(self._maxima) for value in outputs}
        try:
            self._arena: "CpuBuffer" = ops.CpuBuffer(self._memory.arena_bytes)
            self._outputs: dict[int, "CpuBuffer"] = {
                key: ops.CpuBuffer(nbytes) for key, nbytes in sizes.items()
            }
        except CapacityError:
            raise CapacityError(
                f"a step of {self._maxima[Dim.TOKENS]} tokens: the system does not give "
                f"{self._memory.arena_bytes + sum(sizes.values()):,} bytes to work in: leave it "
                "more with --max-context N, which makes the KV cache smaller (in Python "
                "Limits.max_context, or Limits.max_tokens for smaller steps)"
            ) from None
        self.inputs = make_step_inputs(program)
        self.logits = self._array(program.logits)  # float32 [L, V]
        self.greedy = self._array(program.greedy)  # int32 [L]
        self.taps = {stage: self._array(value) for stage, value in program.taps.items()}
        commands = [self._pack(backend, i) for i in range(len(program.commands))]
        self._native = ops.CpuExecutable(backend.device, commands, self.inputs)
        # Without a detour:
        self.submit = self._native.submit  # (n_tokens, n_seqs, n_logit_rows)
        self.cancel = self._native.cancel  # (), from any thread
        if not backend.eager:
            self.wait = self._native.wait

    def wait(self) -> None:
        """Finish the step.

        Raises DeviceError, and whatever a signal handler raises (KeyboardInterrupt); in eager mode
        also NumericalError, for the first stage with a value that is not finite.
        """
        self._native.wait(self._check_finite)

    def wait_profiled(self) -> "numpy.ndarray":
        """As `wait`; gives int64 [commands, threads, 2]: begin and end, monotonic nanoseconds."""
        record = self._native.wait(profile=True)
        return numpy.frombuffer(record, numpy.int64).reshape(len(self._program.commands), -1, 2)

    def _pack(self, backend: "CpuBackend", index: int) -> NativeCommand:
        command = self._program.commands[index]
        return NativeCommand(
            operation=command.operation,
            stage=command.stage,
            dtype=_dtypes(command)[0],
            inputs=tuple(v and self._span(v, backend) for v in command.inputs),
            outputs=tuple(self._span(v) for v in command.outputs),
            attributes=_attributes(command),
            logit_rows=command.rows is Dim.LOGIT_ROWS,
            barrier=self._memory.barriers[index],
            work_per_row=_work_per_row(command, self._program.max_blocks * BLOCK_SIZE),
        )

    def _span(self, value: Value, backend: "CpuBackend | None" = None) -> Span:
        if value.storage is Storage.INPUT:
            array = getattr(self.inputs, value.source)
            return Span(array, 0, array.nbytes)
        if value.storage is Storage.WEIGHT:
            return backend.adopt(value.source)
        nbytes = value.nbytes(self._maxima)
        if value.storage is Storage.SCRATCH:
            return Span(self._arena, self._memory.offsets[id(value)], nbytes)
        memory = value.source if value.storage is Storage.CACHE else self._outputs[id(value)]
        return Span(memory, 0, nbytes)

    def _array(self, value: Value) -> "numpy.ndarray":
        """The memory of a scratch or output value as an array of its full shape."""
        span, count = self._span(value), value.elements(self._maxima)
        flat = numpy.frombuffer(span.owner, _NUMPY[value.dtype], count, span.offset)
        return flat.reshape(-1, value.width) if len(value.shape) > 1 else flat

    def _check_finite(self, index: int) -> None:
        command = self._program.commands[index]
        sizes = dict(zip((Dim.TOKENS, Dim.SEQUENCES, Dim.LOGIT_ROWS), self._native.sizes))
        for value in command.outputs:
            if value.storage is Storage.CACHE or value.dtype is not Dtype.F32:
                continue
            check_finite(value.name, self._array(value)[: sizes[command.rows]])


def _typed_values(command: "Command") -> list[Value]:
    """The weights, or the cache, whose element type chooses the kernel; none means float32."""
    typed = {
        "embed": command.inputs[1:2],
        "linear": command.inputs[1:4],
        "kv_write": command.outputs,
        "attention": command.inputs[1:2],
    }
    return [value for value in typed.get(command.operation, ()) if value is not None]


def _dtypes(command: "Command") -> list[str]:
    names = [value.dtype.value for value in _typed_values(command)] or ["F32"]
    for name in names:
        if name not in _FLOATS:
            raise UnsupportedOperationError(
                f"{command.stage}: the cpu backend has no kernel for operation "
                f"{command.operation!r} with {name}: expected {', '.join(_FLOATS)}"
            )
    return names


def _attributes(command: "Command") -> dict[str, object]:
    """The members of the operation's struct in native/include/kestrel/args.h."""
    names = _dtypes(command)
    head_dim = command.attributes.get("head_dim", 1)
    if head_dim > MAX_HEAD_DIM:
        raise UnsupportedOperationError(
            f"{command.stage}: the cpu backend computes {command.operation} for a head_dim of at "
            f"most {MAX_HEAD_DIM}, found {head_dim}; choose backend='reference'"
        )
    return {**command.attributes, "dtype": names[0], "dtypes": names, "cache_dtype": names[0]}


def _work_per_row(command: "Command", max_context: int) -> float:
    """Multiply-adds of one row, at most."""
    width = sum(value.width for value in command.outputs)
    if command.operation == "linear":
        return float(width * command.attributes["in_features"])
    if command.operation == "attention":
        window = command.attributes["window"] or max_context
        return float(width * 2 * min(window, max_context))
    return float(width)


class CpuBackend:
    """Worker threads and kernels of this processor. One may serve many programs and threads.

    Args:
        threads: None takes KESTREL_THREADS, or what the system grants (kestrel/processors.py).
        isa: the highest instruction set to use; None takes KESTREL_ISA, or the best there is.
        eager: run command by command and check every value; None takes KESTREL_EAGER.

    Raises BackendUnavailableError without the compiled extension, UnsupportedIsaError, ConfigError
    for a wrong number of threads, CapacityError.
    """

    def __init__(
        self, threads: int | None = None, isa: str | None = None, eager: bool | None = None
    ) -> None:
        asked, granted = settings(), processors()
        ops = native_ops()
        self.eager = asked.eager if eager is None else eager
        if threads is None:
            threads = asked.threads or granted.threads
        elif type(threads) is not int or not 1 <= threads <= MAX_THREADS:
            raise ConfigError(
                f"threads: expected an integer from 1 to {MAX_THREADS}, found {threads!r}",
                "threads",
            )
        self.device = ops.CpuDevice(threads, asked.isa if isa is None else isa)
        build = ops.build_info()
        self.info = BackendInfo(
            name="cpu",
            available=True,
            device=processor_name(),
            isa=self.device.isa,
            threads=self.device.threads,
            details={
                "granted": str(granted),
                "usable": ", ".join(ops.isas()),
                **{isa: f"not usable: {why}" for isa, why in ops.missing_isas().items()},
                "build": f"{', '.join(build['isas'])} {build['options']}".rstrip(),
            },
        )

    def allocate(self, nbytes: int) -> "CpuBuffer":
        """Zeroed memory aligned to a page; what is never touched costs nothing."""
        return native_ops().CpuBuffer(nbytes)

    def adopt(self, tensor: "TensorView") -> Span:
        """A matrix where it lies, aligned or not; a vector as an aligned float32 copy."""
        data = tensor.data if len(tensor.shape) > 1 else tensor.to_numpy_f32()
        return Span(data, 0, data.nbytes)

    def compile(self, program: "Program") -> CpuExecutable:
        """Pack a program. Raises UnsupportedOperationError naming stage, operation and dtype."""
        return CpuExecutable(self, program)

    def close(self) -> None:
        """End the worker threads; executables of this backend then raise BackendError."""
        self.device.close()
