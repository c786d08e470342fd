"""The cases of the conformance suite: every operation over awkward shapes, from fixed seeds."""

from __future__ import annotations

import numpy as np
from checkpoints import round_to
from conformance.helpers import Case, activation, normal, output, step_input, tensor
from conformance.position_cases import attention, rope, rotary_embedding

from kestrel import bounds
from kestrel.bounds import KESTREL
from kestrel.dtypes import Dtype
from kestrel.program.values import Dim

N, L = Dim.TOKENS, Dim.LOGIT_ROWS
#: Below, at and above one and two vectors of 16 lanes, and a larger odd one.
SIZES = (1, 2, 15, 16, 17, 31, 33, 97)
DTYPES = ("F32", "F16", "BF16")


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


def every_case() -> list[Case]:
    """All cases, about two hundred; made anew on each call, as running one writes its cache."""
    cases: list[Case] = []
    for size in SIZES:
        cases += [add(3, size), copy(3, size), swiglu(3, size), argmax(size), rms_norm(3, size)]
        cases += [gather_rows(6, size, [5, 0, 3]), linear(2, size, (size,))]
        cases += [embed(size, dtype, 0) for dtype in DTYPES]
        cases += [linear(3, size, (5,), (dtype,), bias=True) for dtype in DTYPES]
        cases += [linear(1, 40, (size,), (dtype,), residual=True) for dtype in DTYPES]
        cases += [linear(size, 24, (7,), ("BF16",), bias=True, residual=True)]
        cases += [rotary_embedding(size, 1.0, [0, 1, 1857, 32767, 131071])]
        cases += [rope(size, 2, 1, 6), rope(2, 3, 3, 2 * size)]
        cases += [attention(2, 1, size, [(5, 5)]), attention(2, 2, 8, [(size, min(size, 3))])]
        cases += [swiglu(3, size, "gelu_tanh"), soft_cap(3, size, 1.0, 30.0), add(3, size, 0.22)]
        cases += [soft_cap(2, size, 0.125, 0.0), rms_norm(2, size, groups=3, offset=1.0)]
        cases += [attention(4, 2, 8, [(40, 3), (70, 70), (2, 2)], window=size)]
    for misaligned in (1, 2, 6):
        cases += [embed(33, dtype, misaligned) for dtype in DTYPES]
        cases += [linear(rows, 33, (9,), (d,), misaligned) for rows in (1, 5) for d in DTYPES]
    # Past the kernels' block sizes in every direction, for each format.
    cases += [linear(rows, 1041, (21,), (d,)) for rows in (1, 6) for d in DTYPES]
    cases += [linear(131, 515, (19,), (d,), residual=True) for d in DTYPES]
    cases += [argmax(vocab) for vocab in (1024, 1089, 5000)]
    # q, k and v share x; formats may differ.
    cases += [linear(5, 48, (18, 6, 6), (d,) * 3, bias=True) for d in DTYPES]
    cases += [linear(2, 31, (17, 9), ("F32", "BF16"), 2), linear(4, 33, (5, 6, 7), DTYPES, 6)]
    cases += [linear(3, 24, (40,), ("BF16",), logit_rows=True)]
    cases += [rms_norm(2, 64, 1e4), rms_norm(2, 64, 1e-6), rms_norm(1, 1025)]
    cases += [rotary_embedding(16, 1.25, list(range(17)))]
    cases += [embed(33, dtype, 0, scale=5.5) for dtype in DTYPES]
    cases += [linear(rows, 33, (9,), residual=True, bias=True, scale=0.22) for rows in (1, 5, 130)]
    cases += [rope(3, 4, 2, 20, 6), rope(3, 2, 1, 40, 34)]
    cases += [rotary_embedding(9, 1.19, list(range(20)), rows=2)]
    cases += [rotary_embedding(9, 1.0, list(range(20)), rows=4)]
    for window in (1, 15, 16, 17, 255, 256, 257):
        cases += [attention(6, 3, 20, [(600, 2), (300, 40), (255, 255)], window=window)]
    for dtype in ("F32", "F16"):
        cases += [attention(4, 1, 20, [(1100, 1), (1040, 17)], dtype, window=300)]
    cases += [attention(6, 1, 20, [(300, 9)], "F16", window=40, soft_cap=5.0)]
    cases += [attention(4, 2, 16, [(300, 300)], soft_cap=50.0)]
    # Grouped queries, contexts around a block and around an attention chunk, a chunk of a prompt,
    # sequences together.
    cases += [attention(6, 3, 8, [(context, 2)]) for context in (255, 256, 257, 300, 513)]
    cases += [attention(6, 2, 10, [(37, 20)]), attention(8, 1, 64, [(20, 20)])]
    for dtype in ("F32", "F16"):
        cases += [attention(6, 3, 12, [(33, 33), (1, 1), (300, 1), (40, 7)], dtype)]
        cases += [attention(4, 2, 33, [(17, 4), (270, 2)], dtype)]
    return cases
