"""The Recorder: one method per operation. The forward pass calls it once; it writes a Program.

Shape rules live here. Names given as ``name=`` are Hugging Face names below the current stage; with
a TraceSpec, a value whose full name matches is also copied to a tap. A traced program records the
residual sums unfolded, so that every stage stays visible; the arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.errors import ShapeError
from kestrel.program.program import Command, Program
from kestrel.program.trace import TraceSpec
from kestrel.program.values import Dim, Shape, Storage, Value

if TYPE_CHECKING:
    import numpy

    from kestrel.models.weights import Linear

__all__ = ["Recorder", "StepValues"]

MAX_WEIGHTS = 3  # KST_MAX_WEIGHTS


@dataclass(frozen=True)
class StepValues:
    """The int32 arrays that change from step to step."""

    token_ids: Value  # [N] ids to embed
    positions: Value  # [N] absolute position of each token
    slots: Value  # [N] where each token's key and value go: block * 16 + offset
    seq_start: Value  # [S + 1] prefix sums of tokens per sequence
    context_len: Value  # [S] positions visible to the last new token
    block_table: Value  # [S, max_blocks] physical blocks
    logit_rows: Value  # [L] rows whose logits are wanted


class Recorder:
    """Records commands. ``maxima`` bound the symbolic axes, ``max_blocks`` a block table's row."""

    def __init__(
        self, maxima: dict[Dim, int], max_blocks: int, trace: TraceSpec | None = None
    ) -> None:
        def of(name: str, *shape: Dim | int) -> Value:
            return Value(name, Storage.INPUT, Dtype.I32, shape, source=name)

        self.inputs = StepValues(
            token_ids=of("token_ids", Dim.TOKENS),
            positions=of("positions", Dim.TOKENS),
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

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Put ``name`` before the names used inside the block."""
        outer = self._prefix
        self._prefix = self._full(name)
        try:
            yield
        finally:
            self._prefix = outer

    # -- operations ------------------------------------------------------------------------

    def embed(self, token_ids: Value, weight: TensorView, name: str) -> Value:
        """Rows of the embedding table. [N], [V, C] -> [N, C]"""
        table = self._weight(weight)
        vocab, dim = table.shape
        return self._record(
            "embed", name, (token_ids, table), [(Dim.TOKENS, dim)], vocab=vocab, dim=dim
        )[0]

    def rotary_embedding(
        self, positions: Value, inverse_frequencies: "numpy.ndarray", scale: float, name: str
    ) -> tuple[Value, Value]:
        """cos and sin of position * inverse frequency, times scale. [N], [D/2] -> [N, D/2] twice"""
        table = self._constant(f"{name}.inv_freq", inverse_frequencies)
        shape = (Dim.TOKENS, table.shape[0])
        cos, sin = self._record(
            "rotary_embedding",
            name,
            (positions, table),
            [shape, shape],
            names=(f"{name}.cos", f"{name}.sin"),
            half=table.shape[0],
            scale=scale,
        )
        return cos, sin

    def rms_norm(self, x: Value, weight: TensorView, eps: float, name: str) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight. [M, C], [C] -> [M, C]"""
        w = self._weight(weight)
        self._require(name, "width", w.shape, (x.width,))
        return self._record("rms_norm", name, (x, w), [x.shape], dim=x.width, eps=eps)[0]

    def linear(
        self,
        x: Value,
        linear: "Linear",
        name: str,
        residual: Value | None = None,
        residual_name: str | None = None,
    ) -> Value:
        """x Wᵀ (+ b) (+ residual). [M, I], [O, I] -> [M, O]

        ``residual_name`` is the stage of the sum, as ``name`` is that of the product.
        """
        if residual is None:
            return self._linear(x, [linear], [name])[0]
        if self._trace is not None:
            product = self._linear(x, [linear], [name])[0]
            return self.add(residual, product, name=residual_name)
        return self._linear(x, [linear], [residual_name], residual, stage=name)[0]

    def linears(self, x: Value, linears: list["Linear"], names: list[str]) -> tuple[Value, ...]:
        """Up to three products that share x: one pass over the row. -> [M, O_i] each"""
        return self._linear(x, linears, names)

    def rope(
        self, q: Value, k: Value, rotary: tuple[Value, Value], head_dim: int, names: list[str]
    ) -> tuple[Value, Value]:
        """Rotate the two halves of each head of q [N, H*D] and k [N, K*D]."""
        cos, sin = rotary
        q_out, k_out = self._record(
            "rope",
            names[0],
            (q, k, cos, sin),
            [q.shape, k.shape],
            names=tuple(names),
            heads=q.width // head_dim,
            kv_heads=k.width // head_dim,
            head_dim=head_dim,
        )
        return q_out, k_out

    def kv_write(self, cache: Value, k: Value, v: Value, slots: Value, head_dim: int) -> None:
        """Store keys and values [N, K*D] at their slots."""
        command = Command(
            "kv_write",
            self._full("self_attn.kv_write"),
            (k, v, slots),
            (cache,),
            {"kv_heads": k.width // head_dim, "head_dim": head_dim, "cache_dtype": cache.dtype},
        )
        self._commands.append(command)

    def attention(self, q: Value, cache: Value, head_dim: int, scale: float, name: str) -> Value:
        """softmax(q kᵀ * scale, causal) v over each sequence's cached positions. -> [N, H*D]"""
        return self._record(
            "attention",
            name,
            (q, cache),
            [q.shape],
            heads=q.width // head_dim,
            kv_heads=cache.shape[2],
            head_dim=head_dim,
            cache_dtype=cache.dtype,
            scale=scale,
        )[0]

    def swiglu(self, gate: Value, up: Value, name: str) -> Value:
        """silu(gate) * up. [M, F] -> [M, F]"""
        self._require(name, "width of up_proj", (up.width,), (gate.width,))
        return self._record("swiglu", name, (gate, up), [gate.shape], dim=gate.width)[0]

    def add(self, a: Value, b: Value, name: str) -> Value:
        """a + b. [M, C] -> [M, C]"""
        self._require(name, "width", (b.width,), (a.width,))
        return self._record("add", name, (a, b), [a.shape], dim=a.width)[0]

    def gather_rows(self, x: Value, rows: Value, name: str) -> Value:
        """The rows of x [N, C] whose logits are wanted. -> [L, C]"""
        return self._record(
            "gather_rows", name, (x, rows), [(Dim.LOGIT_ROWS, x.width)], dim=x.width
        )[0]

    def outputs(self, logits: Value) -> Program:
        """Finish: ``logits`` [L, V] become readable, beside their argmax [L]."""
        greedy = Value("greedy", Storage.OUTPUT, Dtype.I32, (Dim.LOGIT_ROWS,))
        readable = Value(logits.name, Storage.OUTPUT, logits.dtype, logits.shape)
        commands = [_replace_output(command, logits, readable) for command in self._commands]
        commands.append(
            Command("argmax", "greedy", (readable,), (greedy,), {"vocab": logits.width})
        )
        return Program(
            commands=tuple(commands),
            maxima=self._maxima,
            max_blocks=self._max_blocks,
            vocab_size=logits.width,
            logits=readable,
            greedy=greedy,
            taps=dict(self._taps),
        )

    # -- machinery -------------------------------------------------------------------------

    def _linear(
        self,
        x: Value,
        linears: list["Linear"],
        names: list[str],
        residual: Value | None = None,
        stage: str | None = None,
    ) -> tuple[Value, ...]:
        weights = [self._weight(linear.weight) for linear in linears]
        biases = [None if li.bias is None else self._weight(li.bias) for li in linears]
        for weight in weights:
            self._require(stage or names[0], "in_features", (weight.shape[1],), (x.width,))
        padding = [None] * (MAX_WEIGHTS - len(weights))
        return self._record(
            "linear",
            stage or names[0],
            (x, *weights, *padding, *biases, *padding, residual),
            [(x.shape[0], weight.shape[0]) for weight in weights],
            names=tuple(names),
            in_features=x.width,
            weights=len(weights),
            out_features=tuple(weight.shape[0] for weight in weights),
        )

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


def _replace_output(command: Command, old: Value, new: Value) -> Command:
    if old not in command.outputs and old not in command.inputs:
        return command
    return Command(
        command.operation,
        command.stage,
        tuple(new if value is old else value for value in command.inputs),
        tuple(new if value is old else value for value in command.outputs),
        command.attributes,
    )
