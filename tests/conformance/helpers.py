"""Runs one operation on a backend, with guard bytes around everything it may write.

A `Case` is one command over its own memory, with the float64 value of each output and the bound
that arithmetic allows (kestrel.bounds). `run` compiles it into a program of one command.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field

import numpy as np
from checkpoints import encode

from kestrel.backends.base import Backend
from kestrel.backends.cpu import CpuBackend, CpuExecutable, Span
from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.program.program import Command, Program
from kestrel.program.values import Dim, Shape, Storage, Value
from kestrel.runtime import native_ops

GUARD = 256
GUARD_BYTE = 0xA5


@functools.lru_cache(maxsize=None)
def cpu(isa: str, threads: int = 1) -> CpuBackend:
    """One backend per instruction set and thread count, kept for the whole test run."""
    return CpuBackend(threads=threads, isa=isa)


def isas() -> list[str]:
    """Instruction sets that this build has and this machine can run."""
    return native_ops().isas()


# -- operands --------------------------------------------------------------------------------------


def normal(seed: int, *shape: int) -> np.ndarray:
    """float32 standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def tensor(values: np.ndarray, dtype: str = "F32", misaligned: int = 0) -> Value:
    """An operand that lies ``misaligned`` bytes after a multiple of 64, encoded as ``dtype``."""
    data = np.frombuffer(encode(values, dtype), np.uint8)
    memory = np.zeros(data.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + misaligned
    memory[start : start + data.nbytes] = data
    view = memory[start : start + data.nbytes].data.toreadonly()
    name = f"{dtype}{list(values.shape)}+{misaligned}"
    source = TensorView(name, Dtype(dtype), values.shape, view, "(memory)", 0)
    return Value(name, Storage.WEIGHT, Dtype(dtype), values.shape, source)


def activation(values: np.ndarray) -> Value:
    """A float32 operand, aligned as the arena aligns it."""
    return tensor(np.atleast_2d(values))


def step_input(name: str, *shape: Dim | int) -> Value:
    """One of the int32 arrays of StepInputs."""
    return Value(name, Storage.INPUT, Dtype.I32, shape, name)


def output(name: str, *shape: Dim | int, dtype: Dtype = Dtype.F32) -> Value:
    """A readable result."""
    return Value(name, Storage.OUTPUT, dtype, shape)


def kv_cache(blocks: int, kv_heads: int, head_dim: int, dtype: str) -> Value:
    """A cache with guard bytes behind it; fill and read it with `keys_and_values`."""
    shape = (blocks, 2, kv_heads, 16 * head_dim)
    value = Value("cache", Storage.CACHE, Dtype(dtype), shape)
    buffer = native_ops().CpuBuffer(value.nbytes({}) + GUARD)
    memoryview(buffer)[:] = bytes([GUARD_BYTE]) * buffer.nbytes
    return Value("cache", Storage.CACHE, Dtype(dtype), shape, buffer)


def keys_and_values(cache: Value) -> tuple[np.ndarray, np.ndarray]:
    """Views of a cache: keys [blocks, K, D, 16] and values [blocks, K, 16, D] (args.h)."""
    blocks, _, kv_heads, size = cache.shape
    kind = {Dtype.F32: np.float32, Dtype.F16: np.float16}[cache.dtype]
    count = blocks * 2 * kv_heads * size
    both = np.frombuffer(cache.source, kind, count).reshape(blocks, 2, kv_heads, size)
    keys = both[:, 0].reshape(blocks, kv_heads, -1, 16)
    return keys, both[:, 1].reshape(blocks, kv_heads, 16, -1)


# -- cases -----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One command, the counts and arrays of its step, and what must come out.

    ``expected`` holds (value, bound), both float64, for each output.
    """

    name: str
    operation: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    attributes: dict[str, object]
    expected: list[tuple[np.ndarray, np.ndarray]]
    rows: int
    step: dict[str, np.ndarray] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation}-{self.name}"

    @property
    def sequences(self) -> int:
        """Number of sequences in the step."""
        return len(self.step.get("context_len", [0]))


class GuardedExecutable(CpuExecutable):
    """A compiled program whose outputs lie between guard bytes."""

    def __init__(self, backend: CpuBackend, program: Program) -> None:
        self.guarded: dict[int, object] = {}
        super().__init__(backend, program)

    def _span(self, value: Value, backend: CpuBackend | None = None) -> Span:
        if value.storage is not Storage.OUTPUT:
            return super()._span(value, backend)
        nbytes = value.nbytes(self._maxima)
        if id(value) not in self.guarded:
            memory = native_ops().CpuBuffer(GUARD + nbytes + GUARD)
            memoryview(memory)[:] = bytes([GUARD_BYTE]) * memory.nbytes
            self.guarded[id(value)] = memory
        return Span(self.guarded[id(value)], GUARD, nbytes)

    def check_guards(self) -> None:
        """Fail when anything but the outputs was written."""
        for memory in self.guarded.values():
            raw = np.frombuffer(memory, np.uint8)
            assert (raw[:GUARD] == GUARD_BYTE).all(), "bytes before an output were written"
            assert (raw[-GUARD:] == GUARD_BYTE).all(), "bytes behind an output were written"


def program_of(case: Case) -> Program:
    """A program of the case's one command; its outputs are taps."""
    logit_rows = any(Dim.LOGIT_ROWS in value.shape for value in case.outputs)
    tables = case.step.get("block_table", np.zeros((1, 1), np.int32))
    unused = [output(name, Dim.LOGIT_ROWS, 1) for name in ("logits", "greedy")]
    command = Command(case.operation, str(case), case.inputs, case.outputs, case.attributes)
    return Program(
        commands=(command,),
        maxima={
            Dim.TOKENS: max(case.rows, len(case.step.get("token_ids", []))),
            Dim.SEQUENCES: case.sequences,
            Dim.LOGIT_ROWS: case.rows if logit_rows else 1,
        },
        max_blocks=tables.shape[1],
        vocab_size=1,
        logits=unused[0],
        greedy=unused[1],
        taps={v.name: v for v in case.outputs if v.storage is Storage.OUTPUT},
    )


def run(backend: Backend, case: Case) -> list[np.ndarray]:
    """The outputs of a case, copied; on the cpu backend the guard bytes are checked too."""
    guarded = isinstance(backend, CpuBackend)
    program = program_of(case if guarded else _with_cache_of(backend, case))
    executable = GuardedExecutable(backend, program) if guarded else backend.compile(program)
    for name, values in case.step.items():
        getattr(executable.inputs, name)[...] = values
    rows = program.maxima[Dim.LOGIT_ROWS]
    executable.submit(program.maxima[Dim.TOKENS], case.sequences, rows)
    executable.wait()
    if guarded:
        executable.check_guards()
    return [executable.taps[name].copy() for name in program.taps]


def _with_cache_of(backend: Backend, case: Case) -> Case:
    """The case with its cache in a buffer of the backend's own."""

    def own(value: Value | None) -> Value | None:
        if value is None or value.storage is not Storage.CACHE:
            return value
        buffer = backend.allocate(value.nbytes({}))
        buffer.write(0, memoryview(value.source)[: buffer.nbytes])
        return dataclasses.replace(value, source=buffer)

    return dataclasses.replace(case, inputs=tuple(map(own, case.inputs)))


def check(case: Case, found: list[np.ndarray]) -> None:
    """Every element within its bound of the float64 value."""
    assert len(found) == len(case.expected)
    for index, (result, (value, bound)) in enumerate(zip(found, case.expected)):
        assert result.shape == value.shape, f"{case}: output {index}"
        error = np.abs(result.astype(np.float64) - value)
        excess = ~(error <= bound)  # also where either is NaN
        if excess.any():
            where = tuple(np.argwhere(excess)[0])
            raise AssertionError(
                f"{case}: output {index}{list(where)}: expected {value[where]!r} within "
                f"{bound[where]:.3g}, found {result[where]!r}; {excess.sum()} of {excess.size}"
            )


def bits(found: list[np.ndarray]) -> bytes:
    """The outputs as bytes, for comparisons to the last bit."""
    return b"".join(result.tobytes() for result in found)
