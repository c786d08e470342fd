"""Cases of the conformance suite from fixed seeds; attention has a file of its own."""

from __future__ import annotations

import numpy as np
from checkpoints import round_to
from conformance.helpers import Case, activation, output, step_input, tensor

from kestrel import bounds
from kestrel.bounds import KESTREL
from kestrel.dtypes import Dtype
from kestrel.program.values import Dim

N, L = Dim.TOKENS, Dim.LOGIT_ROWS
#: Below, at and above one and two vectors of 16 lanes, and a larger odd one.
SIZES = (1, 2, 15, 16, 17, 31, 33, 97)
DTYPES = ("F32", "F16", "BF16")


def normal(seed: int, *shape: int) -> np.ndarray:
    """float32 standard normal values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def embed(
    dim: int, dtype: str, misaligned: int, rows: int = 5, vocab: int = 7, scale: float = 1.0
) -> Case:
    table = normal(dim, vocab, dim)
    ids = np.random.default_rng(rows).integers(0, vocab, rows)
    return Case(
        f"{dim}-{dtype}+{misaligned}" + f"x{scale:g}" * (scale != 1),
        "embed",
        (step_input("token_ids", N), tensor(table, dtype, misaligned)),
        (output("y", N, dim),),
        {"vocab": vocab, "dim": dim, "scale": scale},
        [bounds.scaled(round_to(table, dtype)[ids], scale, KESTREL)],
        rows,
        {"token_ids": ids},
    )


def rotary_embedding(half: int, scale: float, positions: list[int], rows: int = 1) -> Case:
    """Row r of the table holds frequencies divided by r + 1; lengths from 9 on choose row 1."""
    frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    table = np.stack([frequencies / np.float32(row + 1) for row in range(rows)])
    lengths = np.array(positions) % 7 + 6
    at = np.array(positions, np.float32)[:, None]
    rounded = at * table[np.clip(lengths - 8, 0, rows - 1)]  # to float32, as the contract says
    angle = rounded.astype(np.float64)

    def bounded(table: np.ndarray) -> bounds.Bounded:
        # One rounding to float32, one product with the scale, rounded.
        return table * np.float32(scale), np.abs(table * scale) * KESTREL.gamma(0, 2) + 2.0**-45

    return Case(
        f"{half}-x{scale}-{len(positions)}" + f"-{rows}" * (rows > 1),
        "rotary_embedding",
        (step_input("positions", N), step_input("rope_lengths", N), tensor(table)),
        (output("cos", N, half), output("sin", N, half)),
        {"half": half, "rows": rows, "first_length": 8, "scale": scale},
        [bounded(np.cos(angle)), bounded(np.sin(angle))],
        len(positions),
        {"positions": np.array(positions), "rope_lengths": lengths},
    )


def rms_norm(rows: int, dim: int, size: float = 1.0, groups: int = 1, offset: float = 0.0) -> Case:
    x, weight = size * normal(dim, rows, groups * dim), 1 + normal(dim + 1, dim) / 8
    weight, eps = weight - np.float32(offset), 1e-5
    x[0, :] = 0.0 if rows > 1 else x[0, :]
    return Case(
        f"{rows}x{groups}x{dim}-size{size:g}" + f"+{offset:g}" * (offset != 0),
        "rms_norm",
        (activation(x), tensor(weight)),
        (output("y", N, groups * dim),),
        {"dim": dim, "groups": groups, "eps": eps, "offset": offset},
        [bounds.rms_norm(x, weight, eps, KESTREL, offset)],
        rows,
    )


def linear(
    rows: int,
    width: int,
    outs: tuple[int, ...],
    dtypes: tuple[str, ...] = ("F32",) * 3,
    misaligned: int = 0,
    bias: bool = False,
    residual: bool = False,
    logit_rows: bool = False,
    scale: float = 1.0,
) -> Case:
    x = normal(width, rows, width)
    weights = [normal(100 + i, out, width) for i, out in enumerate(outs)]
    biases = [normal(200 + i, out) if bias and i != 1 else None for i, out in enumerate(outs)]
    plus = normal(300, rows, outs[0]) if residual else None
    expected = []
    for weight, dtype, b in zip(weights, dtypes, biases):
        value, bound = bounds.linear(x, round_to(weight, dtype), b, KESTREL)
        if scale != 1:  # one product, rounded
            bound = abs(scale) * (bound + (np.abs(value) + bound) * KESTREL.gamma(0, 2))
            value = scale * value
        if plus is not None:
            value = value + plus
            bound = bound + (np.abs(value) + bound) * KESTREL.gamma(0, 1)
        expected.append((value, bound))
    padding = (None,) * (3 - len(outs))
    tensors = [tensor(w, d, misaligned) for w, d in zip(weights, dtypes)]
    axis = L if logit_rows else N
    flags = "b" * bias + "r" * residual + "l" * logit_rows + f"x{scale:g}" * (scale != 1)
    return Case(
        f"{rows}x{width}-{outs}-{dtypes[: len(outs)]}+{misaligned}{flags}".replace(" ", ""),
        "linear",
        (
            activation(x),
            *tensors,
            *padding,
            *(None if b is None else tensor(b) for b in biases),
            *padding,
            None if plus is None else activation(plus),
        ),
        tuple(output(f"y{i}", axis, out) for i, out in enumerate(outs)),
        {"in_features": width, "weights": len(outs), "out_features": outs, "scale": scale},
        expected,
        rows,
    )


def rope(rows: int, heads: int, kv_heads: int, head_dim: int, rotary_dim: int = 0) -> Case:
    q, k = normal(1, rows, heads * head_dim), normal(2, rows, kv_heads * head_dim)
    rotary_dim = rotary_dim or head_dim
    angle = normal(3, rows, rotary_dim // 2)
    cos, sin = np.cos(angle), np.sin(angle)
    return Case(
        f"{rows}-{heads}/{kv_heads}x{head_dim}" + f":{rotary_dim}" * (rotary_dim < head_dim),
        "rope",
        (activation(q), activation(k), activation(cos), activation(sin)),
        (output("q", N, heads * head_dim), output("k", N, kv_heads * head_dim)),
        {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "rotary_dim": rotary_dim},
        [
            bounds.rope(q, cos, sin, heads, KESTREL),
            bounds.rope(k, cos, sin, kv_heads, KESTREL),
        ],
        rows,
    )


def swiglu(rows: int, dim: int, activation_name: str = "silu") -> Case:
    gate, up = 4 * normal(1, rows, dim), normal(2, rows, dim)
    edges = np.array([0.0, -0.0, 88.7, -88.7, 200.0, -200.0, -1e30, 3e38], np.float32)
    gate.flat[: len(edges)] = edges[: gate.size]
    return Case(
        f"{rows}x{dim}-{activation_name}",
        "swiglu",
        (activation(gate), activation(up)),
        (output("y", N, dim),),
        {"dim": dim, "activation": activation_name},
        [(bounds.swiglu if activation_name == "silu" else bounds.geglu)(gate, up, KESTREL)],
        rows,
    )


def add(rows: int, dim: int, scale: float = 1.0) -> Case:
    a, b = normal(1, rows, dim), normal(2, rows, dim)
    inputs, outputs = (activation(a), activation(b)), (output("y", N, dim),)
    expected = [bounds.residual(a, b, KESTREL, scale)]
    attributes = {"dim": dim, "scale": scale}
    name = f"{rows}x{dim}" + f"x{scale:g}" * (scale != 1)
    return Case(name, "add", inputs, outputs, attributes, expected, rows)


def soft_cap(rows: int, dim: int, scale: float, cap: float) -> Case:
    x = 30 * normal(1, rows, dim)
    x.flat[:3] = [0.0, 1e-20, -3e38][: x.size]
    attributes = {"dim": dim, "scale": scale, "cap": cap}
    expected = [bounds.soft_cap(x, scale, cap or None, KESTREL)]
    name = f"{rows}x{dim}x{scale:g}-cap{cap:g}"
    return Case(
        name, "soft_cap", (activation(x),), (output("y", N, dim),), attributes, expected, rows
    )


def copy(rows: int, dim: int) -> Case:
    x = normal(1, rows, dim)
    outputs, expected = (output("y", N, dim),), [bounds.exact(x)]
    return Case(f"{rows}x{dim}", "copy", (activation(x),), outputs, {"dim": dim}, expected, rows)


def gather_rows(tokens: int, dim: int, rows: list[int]) -> Case:
    x = normal(1, tokens, dim)
    return Case(
        f"{tokens}x{dim}-{len(rows)}",
        "gather_rows",
        (activation(x), step_input("logit_rows", L)),
        (output("y", L, dim),),
        {"dim": dim},
        [bounds.exact(x[rows])],
        len(rows),
        {"logit_rows": np.array(rows)},
    )


def argmax(vocab: int) -> Case:
    """Rows: plain, a tie (the lower index wins), all equal, all negative, NaN, +inf, -inf."""
    logits = normal(vocab, 7, vocab)
    logits[1, [vocab // 3, vocab - 1]] = 9.0
    logits[2] = -1.5
    logits[3] = -np.abs(logits[3]) - 1
    for row, value in ((4, np.nan), (5, np.inf), (6, -np.inf)):
        logits[row, vocab // 2] = value
    expected = [int(np.argmax(row)) for row in logits[:4]] + [-1, -1, -1]
    return Case(
        str(vocab),
        "argmax",
        (activation(logits),),
        (output("y", L, dtype=Dtype.I32),),
        {"vocab": vocab},
        [bounds.exact(np.array(expected))],
        7,
    )
