"""The reference backend: every operation in NumPy, one at a time, accumulated in float64.

It is the executable specification of the operations, and slow. Activations are rounded to float32
after each operation, as the other backends store them; nothing else is rounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
from numpy import float32, float64

from kestrel.backends.base import BackendInfo, StepInputs
from kestrel.backends.host import HostBuffer, check_finite, host_array, make_step_inputs
from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.dtypes import Dtype
from kestrel.errors import SessionBusyError, UnsupportedOperationError
from kestrel.program.values import Dim, Storage, Value
from kestrel.runtime import settings

if TYPE_CHECKING:
    from kestrel.checkpoint.safetensors_file import TensorView
    from kestrel.program.program import Command, Program

__all__ = ["INFO", "OPERATIONS", "ReferenceBackend"]

INFO = BackendInfo("reference", True, "NumPy, float64 accumulation: the specification, slow")


# -- the operations: float32 in, float32 out; shapes as in native/include/kestrel/args.h --------


def embed(command, step, token_ids, table):
    """y[n] = scale * E[token[n]]"""
    return float32(command.attributes["scale"]) * table[token_ids]


def rotary_embedding(command, step, positions, rope_lengths, inverse_frequencies):
    """cos and sin of the float32 angle, as transformers' LlamaRotaryEmbedding."""
    scale = float32(command.attributes["scale"])
    rows = rope_lengths - command.attributes["first_length"]
    rows = numpy.clip(rows, 0, command.attributes["rows"] - 1)  # [N]
    angle = positions.astype(float32)[:, None] * inverse_frequencies[rows]  # [N, D/2]
    exact = angle.astype(float64)
    return numpy.cos(exact).astype(float32) * scale, numpy.sin(exact).astype(float32) * scale


def rms_norm(command, step, x, weight):
    """(offset + w) * (x / sqrt(mean(x^2) + eps)) over each run of len(w) columns
    (Zhang and Sennrich 2019, arXiv:1910.07467)"""
    runs = x.reshape(len(x), x.shape[1] // len(weight), len(weight)).astype(float64)
    mean = (runs * runs).mean(axis=-1, keepdims=True)
    weight = weight.astype(float64) + float32(command.attributes["offset"])
    y = weight * (runs / numpy.sqrt(mean + float32(command.attributes["eps"])))
    return y.reshape(x.shape)


def linear(command, step, x, *rest):
    """y_i = (residual +) scale * (x W_iᵀ (+ b_i))

    Row by row, so that a row's bits do not depend on its neighbours; and the product is rounded
    before it is added, as it is where a traced program adds it in a command of its own."""
    weights, biases, residual = rest[:3], rest[3:6], rest[6]
    scale = float64(float32(command.attributes["scale"]))
    results = []
    for weight, bias in zip(weights, biases):
        if weight is None:
            continue
        rows = x.astype(float64)[:, None, :]  # [M, 1, I]
        y = (rows @ weight.astype(float64).T)[:, 0]  # [M, O]
        if bias is not None:
            y = y + bias
        results.append(scale * y if residual is None else residual + scale * y.astype(float32))
    return tuple(results)


def rope(command, step, q, k, cos, sin):
    """(a, b) -> (a cos - b sin, b cos + a sin) on the halves of each head's first rotary_dim
    columns (Su and others 2021, arXiv:2104.09864, in the layout of transformers' rotate_half)."""
    head_dim, rotary_dim = command.attributes["head_dim"], command.attributes["rotary_dim"]
    half = rotary_dim // 2
    cos, sin = cos[:, None, :].astype(float64), sin[:, None, :].astype(float64)  # [N, 1, D/2]
    rotated = []
    for x in (q, k):
        heads = x.reshape(len(x), -1, head_dim).astype(float64)  # [N, heads, D]
        a, b, rest = numpy.split(heads, [half, rotary_dim], axis=-1)
        turned = numpy.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
        rotated.append(turned.reshape(x.shape))
    return tuple(rotated)


def kv_write(command, step, k, v, slots, cache):
    """cache[slot[n]] = k[n], v[n]"""
    keys, values = _cache_views(command, cache)
    head_dim = command.attributes["head_dim"]
    block, offset = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    keys[block, :, :, offset] = k.reshape(len(k), -1, head_dim)
    values[block, :, offset, :] = v.reshape(len(v), -1, head_dim)
    return ()


def attention(command, step, q, cache):
    """softmax(q kᵀ * scale, causal) v (Vaswani and others 2017, arXiv:1706.03762)

    With a window: Jiang and others 2023, arXiv:2310.06825; capped: Gemma 2, arXiv:2408.00118."""
    keys, values = _cache_views(command, cache)
    kv_heads, head_dim = command.attributes["kv_heads"], command.attributes["head_dim"]
    group = command.attributes["heads"] // kv_heads
    scale = float64(float32(command.attributes["scale"]))
    window, cap = command.attributes["window"], float64(float32(command.attributes["soft_cap"]))
    out = numpy.empty(q.shape, dtype=float64)
    for sequence in range(step.n_seqs):
        start, stop = step.inputs.seq_start[sequence : sequence + 2]
        length = int(step.inputs.context_len[sequence])
        blocks = step.inputs.block_table[sequence, : -(-length // BLOCK_SIZE)]
        k = keys[blocks].transpose(1, 0, 3, 2).reshape(kv_heads, -1, head_dim)[:, :length]
        v = values[blocks].transpose(1, 0, 2, 3).reshape(kv_heads, -1, head_dim)[:, :length]
        k, v = k.astype(float64), v.astype(float64)  # [K, P, D]
        for n in range(start, stop):
            stop_at = int(step.inputs.positions[n]) + 1
            seen = slice(max(0, stop_at - window) if window else 0, stop_at)
            rows = q[n].reshape(kv_heads, group, head_dim).astype(float64)
            scores = rows @ k[:, seen].transpose(0, 2, 1) * scale  # [K, group, seen]
            if cap:
                scores = cap * numpy.tanh(scores / cap)
            weights = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out[n] = (weights @ v[:, seen]).reshape(-1)
    return out


def swiglu(command, step, gate, up):
    """silu(gate) * up, or gelu(gate) * up with gelu's tanh form (Hendrycks and Gimpel 2016,
    arXiv:1606.08415)"""
    gate = gate.astype(float64)
    if command.attributes["activation"] == "gelu_tanh":
        inner = numpy.sqrt(2 / numpy.pi) * (gate + 0.044715 * gate**3)
        return 0.5 * gate * (1.0 + numpy.tanh(inner)) * up
    with numpy.errstate(over="ignore"):  # exp(-gate) = inf gives the right limit, 0
        return gate / (1.0 + numpy.exp(-gate)) * up


def add(command, step, a, b):
    """a + scale * b"""
    return a + float64(float32(command.attributes["scale"])) * b


def soft_cap(command, step, x):
    """scale * x, or cap * tanh(scale * x / cap)"""
    scale, cap = (float64(float32(command.attributes[key])) for key in ("scale", "cap"))
    return cap * numpy.tanh(scale * x / cap) if cap else scale * x


def gather_rows(command, step, x, rows):
    """y[l] = x[row[l]]"""
    return x[rows]


def argmax(command, step, logits):
    """The lowest index of the largest logit, -1 where a row is not finite."""
    finite = numpy.isfinite(logits).all(axis=-1)
    return numpy.where(finite, logits.argmax(axis=-1), -1)


def copy(command, step, x):
    """A tap."""
    return x


OPERATIONS = {
    function.__name__: function
    for function in (
        embed, rotary_embedding, rms_norm, linear, rope, kv_write, attention, swiglu, add,
        soft_cap, gather_rows, argmax, copy,
    )
}  # fmt: skip


def _cache_views(command, cache):
    """Keys [blocks, K, D, 16] and values [blocks, K, 16, D] of one layer's buffer."""
    dtype = float32 if command.attributes["cache_dtype"] is Dtype.F32 else numpy.float16
    kv_heads, head_dim = command.attributes["kv_heads"], command.attributes["head_dim"]
    both = cache.bytes.view(dtype).reshape(-1, 2, kv_heads, head_dim * BLOCK_SIZE)
    keys = both[:, 0].reshape(-1, kv_heads, head_dim, BLOCK_SIZE)
    return keys, both[:, 1].reshape(-1, kv_heads, BLOCK_SIZE, head_dim)


class ReferenceExecutable:
    """Runs the commands in order. Step through ``wait`` with a debugger to watch a token made."""

    def __init__(
        self, program: "Program", weights: dict[int, "numpy.ndarray"], eager: bool
    ) -> None:
        maxima = dict(program.maxima)
        self.inputs: StepInputs = make_step_inputs(program)
        self.n_seqs = 0
        self._program = program
        self._eager = eager
        self._arrays = dict(weights)  # id(Value) -> array
        for value in (program.logits, program.greedy, *program.taps.values()):
            self._arrays[id(value)] = host_array(value, maxima)
        self.logits = self._arrays[id(program.logits)]  # [L, V]
        self.greedy = self._arrays[id(program.greedy)]  # [L]
        self.taps = {name: self._arrays[id(value)] for name, value in program.taps.items()}
        self._sizes: dict[Dim, int] | None = None

    def submit(self, n_tokens: int, n_seqs: int, n_logit_rows: int) -> None:
        """Start a step: the work happens in ``wait``."""
        if self._sizes is not None:
            raise SessionBusyError("a step is under way: wait for it before the next submit")
        self.n_seqs = n_seqs
        self._sizes = {Dim.TOKENS: n_tokens, Dim.SEQUENCES: n_seqs, Dim.LOGIT_ROWS: n_logit_rows}

    def wait(self) -> None:
        """Run every command. Raises NumericalError in eager mode (KESTREL_EAGER=1)."""
        sizes, scratch = self._sizes, {}
        try:
            for command in self._program.commands:
                self._run(command, sizes, scratch)
        finally:
            self._sizes = None

    def cancel(self) -> None:
        """Drop a step that was announced."""
        self._sizes = None

    def _run(self, command: "Command", sizes: dict[Dim, int], scratch: dict[int, object]) -> None:
        inputs = [self._read(value, sizes, scratch) for value in command.inputs]
        if command.operation == "kv_write":
            inputs.append(command.outputs[0].source)
        results = OPERATIONS[command.operation](command, self, *inputs)
        results = results if isinstance(results, tuple) else (results,)
        for value, result in zip(command.outputs, results):
            if value.storage is Storage.OUTPUT:
                self._arrays[id(value)][: sizes[value.shape[0]]] = result
            elif value.storage is Storage.SCRATCH:
                scratch[id(value)] = numpy.asarray(result, dtype=float32)
            if self._eager and value.dtype is Dtype.F32 and value.storage is not Storage.CACHE:
                check_finite(value.name, self._read(value, sizes, scratch))

    def _read(self, value: Value | None, sizes: dict[Dim, int], scratch: dict[int, object]):
        if value is None:
            return None
        if value.storage is Storage.CACHE:
            return value.source
        if value.storage is Storage.SCRATCH:
            return scratch[id(value)]
        if value.storage is Storage.INPUT:
            return getattr(self.inputs, value.source)[: sizes[value.shape[0]]]
        if value.storage is Storage.OUTPUT:
            return self._arrays[id(value)][: sizes[value.shape[0]]]
        return self._arrays[id(value)]


class ReferenceBackend:
    """See the module's first lines."""

    info = INFO

    def __init__(self) -> None:
        self._adopted: dict[int, tuple["TensorView", "numpy.ndarray"]] = {}

    def allocate(self, nbytes: int) -> HostBuffer:
        """Zeroed host memory."""
        return HostBuffer(nbytes)

    def adopt(self, tensor: "TensorView") -> "numpy.ndarray":
        """The tensor widened to float32: a copy; a matrix's is kept for the next program."""
        if len(tensor.shape) == 1:
            return tensor.to_numpy_f32()
        if id(tensor) not in self._adopted:
            self._adopted[id(tensor)] = (tensor, tensor.to_numpy_f32())
        return self._adopted[id(tensor)][1]

    def compile(self, program: "Program") -> ReferenceExecutable:
        """Widen the weights and keep the list of commands."""
        for command in program.commands:
            if command.operation not in OPERATIONS:
                raise UnsupportedOperationError(
                    f"{command.stage}: the reference backend has no operation "
                    f"{command.operation!r}; it has {', '.join(OPERATIONS)}"
                )
        weights = {
            id(value): self.adopt(value.source)
            for value in program.values()
            if value.storage is Storage.WEIGHT
        }
        return ReferenceExecutable(program, weights, settings().eager)

    def close(self) -> None:
        """Forget the widened weights."""
        self._adopted.clear()
