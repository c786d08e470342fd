"""The Recorder: one method per operation. The forward pass calls it once; it writes a Program.

Shape rules live here. Names given as ``name=`` are Hugging Face names below the current stage; with
a TraceSpec, a value whose full name matches is also copied to a tap. A traced program records the
residual sums unfolded, so that every stage stays visible; the arithmetic is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.program.program import Command, Program
from kestrel.program.recording import Recording
from kestrel.program.values import Dim, Storage, Value

if TYPE_CHECKING:
    from kestrel.models.rope import Frequencies
    from kestrel.models.weights import Linear

__all__ = ["Recorder"]

MAX_WEIGHTS = 3  # KST_MAX_WEIGHTS


class Recorder(Recording):
    """Records commands, a method for each operation."""

    def embed(self, token_ids: Value, weight: TensorView, scale: float, name: str) -> Value:
        """Rows of the embedding table, times scale. [N], [V, C] -> [N, C]"""
        table = self._weight(weight)
        vocab, dim = table.shape
        shapes = [(Dim.TOKENS, dim)]
        return self._record(
            "embed", name, (token_ids, table), shapes, vocab=vocab, dim=dim, scale=scale
        )[0]

    def rotary_embedding(self, frequencies: "Frequencies", name: str) -> tuple[Value, Value]:
        """cos and sin of position * frequency, times scale; which row of the table, the length of
        the sequence says. [N], [N], [rows, D/2] -> [N, D/2] twice"""
        table = self._constant(f"{name}.inv_freq", frequencies.table)
        rows, half = table.shape
        cos, sin = self._record(
            "rotary_embedding",
            name,
            (self.inputs.positions, self.inputs.rope_lengths, table),
            [(Dim.TOKENS, half)] * 2,
            names=(f"{name}.cos", f"{name}.sin"),
            half=half,
            rows=rows,
            first_length=frequencies.first_length,
            scale=frequencies.scale,
        )
        return cos, sin

    def rms_norm(
        self, x: Value, weight: TensorView, eps: float, offset: float, name: str
    ) -> Value:
        """x / sqrt(mean(x^2) + eps) * (offset + weight), over each run of as many columns as there
        are weights: a row, or each head of it. [M, groups * W], [W] -> [M, groups * W]"""
        w = self._weight(weight)
        self._require(name, "width", (x.width % w.shape[0], *w.shape[1:]), (0,))
        groups = x.width // w.shape[0]
        attributes = {"dim": w.shape[0], "groups": groups, "eps": eps, "offset": offset}
        return self._record("rms_norm", name, (x, w), [x.shape], **attributes)[0]

    def linear(
        self,
        x: Value,
        linear: "Linear",
        name: str,
        residual: Value | None = None,
        scale: float = 1.0,
        residual_name: str | None = None,
    ) -> Value:
        """x Wᵀ (+ b), or residual + scale * (x Wᵀ (+ b)). [M, I], [O, I] -> [M, O]

        ``residual_name`` is the stage of the sum, as ``name`` is that of the product.
        """
        if residual is None:
            return self._linear(x, [linear], [name])[0]
        if self.is_traced:
            product = self._linear(x, [linear], [name])[0]
            return self.add(residual, product, scale, residual_name)
        return self._linear(x, [linear], [residual_name], residual, scale, stage=name)[0]

    def linears(self, x: Value, linears: list["Linear"], names: list[str]) -> tuple[Value, ...]:
        """Up to three products that share x: one pass over the row. -> [M, O_i] each"""
        return self._linear(x, linears, names)

    def rope(
        self, q: Value, k: Value, rotary: tuple[Value, Value], head_dim: int, names: list[str]
    ) -> tuple[Value, Value]:
        """Rotate the two halves of each head of q [N, H*D] and k [N, K*D], as far as cos and sin
        reach: twice their width."""
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
            rotary_dim=2 * cos.width,
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

    def attention(
        self,
        q: Value,
        cache: Value,
        head_dim: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        name: str,
    ) -> Value:
        """softmax(q kᵀ * scale, causal) v over each sequence's cached positions, of which a token
        sees the last ``window``; scores s may be capped to soft_cap * tanh(s / soft_cap).
        -> [N, H*D]"""
        return self._record(
            "attention",
            name,
            (q, cache),
            [q.shape],
            heads=q.width // head_dim,
            kv_heads=cache.shape[2],
            head_dim=head_dim,
            cache_dtype=cache.dtype,
            window=window or 0,
            scale=scale,
            soft_cap=soft_cap or 0.0,
        )[0]

    def swiglu(self, gate: Value, up: Value, activation: str, name: str) -> Value:
        """act(gate) * up; ``activation`` as in config.json. [M, F] -> [M, F]"""
        self._require(name, "width of up_proj", (up.width,), (gate.width,))
        short = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}[activation]
        attributes = {"dim": gate.width, "activation": short}
        return self._record("swiglu", name, (gate, up), [gate.shape], **attributes)[0]

    def add(self, a: Value, b: Value, scale: float, name: str) -> Value:
        """a + scale * b. [M, C] -> [M, C]"""
        self._require(name, "width", (b.width,), (a.width,))
        return self._record("add", name, (a, b), [a.shape], dim=a.width, scale=scale)[0]

    def soft_cap(self, x: Value, scale: float, cap: float | None, name: str) -> Value:
        """scale * x, or cap * tanh(scale * x / cap). [M, C] -> [M, C]"""
        attributes = {"dim": x.width, "scale": scale, "cap": cap or 0.0}
        return self._record("soft_cap", name, (x,), [x.shape], **attributes)[0]

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

    def _linear(
        self,
        x: Value,
        linears: list["Linear"],
        names: list[str],
        residual: Value | None = None,
        scale: float = 1.0,
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
            scale=scale,
        )


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
