"""Every operation over awkward shapes."""

from __future__ import annotations

from conformance.attention_cases import attention
from conformance.cases import (
    DTYPES,
    SIZES,
    add,
    argmax,
    copy,
    embed,
    gather_rows,
    linear,
    rms_norm,
    rope,
    rotary_embedding,
    soft_cap,
    swiglu,
)
from conformance.helpers import Case


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
    for window in (16, 17, 255, 256, 257):
        cases += [attention(6, 3, 20, [(600, 2), (300, 40), (255, 255)], window=window)]
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
