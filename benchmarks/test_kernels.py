"""Kernels: each operation, for each instruction set that this build has and this machine runs.

Every run's bits are compared with those of one thread of the best instruction set, so that threads
and instruction sets check each other; tests/conformance holds the values against float64.
"""

from __future__ import annotations

import math
from itertools import product

import machine
import numpy as np
import pytest
from figures import digest
from limits import QUICK
from models import SHAPES
from programs import Kernels, Weights, kv_cache, step_input, value, vector

from kestrel.dtypes import Dtype
from kestrel.program.program import Command
from kestrel.program.values import Dim
from kestrel.runtime import native_ops

N, L = Dim.TOKENS, Dim.LOGIT_ROWS
BEST = machine.best_isa()
ISAS = [BEST, *(isa for isa in reversed(native_ops().isas()) if isa != BEST)]
DTYPES = ("F32", "BF16", "F16")
LARGE = pytest.mark.large
#: Bytes of weights that a cold program goes round over.
COLD = 48 << 20 if QUICK else min(max(4 * machine.cache_bytes(), 256 << 20), 1 << 30)
#: Operations of one run: the scalar kernels call fmaf, which is a function on old processors.
FLOPS, FLOPS_SCALAR = 3e8 if QUICK else 2e9, 5e7


def linear_shapes(name: str) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Stage -> (in_features, out_features of each weight)."""
    config = SHAPES[name]
    hidden, inner, head_dim = (
        config[key] for key in ("hidden_size", "intermediate_size", "head_dim")
    )
    q_width, kv_width = (
        config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads")
    )
    return {
        "qkv": (hidden, (q_width, kv_width, kv_width)),
        "gate_up": (hidden, (inner, inner)),
        "down": (inner, (hidden,)),
        "lm_head": (hidden, (config["vocab_size"],)),
    }


def linear_cases() -> list:
    """Every stage and row count for the best instruction set, one stage for the others."""
    cases = []
    for dtype, isa, name, rows in product(DTYPES, ISAS, ("15M", "135M", "1B"), (1, 16, 128)):
        for stage in linear_shapes(name):
            sample = stage == "gate_up" and name == "15M"
            if isa != BEST and (not sample or rows == 128):
                continue
            if stage == "lm_head" and rows == 128:
                continue  # a step has few logit rows
            quick = sample and (rows < 128 or dtype == "BF16")
            cases.append(
                pytest.param(
                    isa, name, stage, dtype, rows,
                    id=f"{isa}-{name}-{stage}-{dtype}-{rows}", marks=() if quick else LARGE,
                )  # fmt: skip
            )
    return cases


@pytest.mark.parametrize("isa, name, stage, dtype, rows", linear_cases())
def test_linear(measure, work, isa, name, stage, dtype, rows):
    width, outs = linear_shapes(name)[stage]
    elements = width * sum(outs)
    flops = 2.0 * rows * elements
    weight_bytes = elements * Dtype(dtype).size
    most = FLOPS_SCALAR if isa == "scalar" else FLOPS
    count = max(1, min(math.ceil(COLD / weight_bytes), int(most / flops)))
    weights = Weights(dtype, max(COLD, weight_bytes))
    x = value("x", N, width)
    ys = [value(f"y{i}", N, out) for i, out in enumerate(outs)]
    padding = (None,) * (3 - len(outs))
    attributes = {"in_features": width, "weights": len(outs), "out_features": outs, "scale": 1.0}
    commands = []
    for _ in range(count):
        matrices = [weights.matrix(out, width) for out in outs]
        inputs = (x, *matrices, *padding, None, None, None, None)
        commands.append(Command("linear", stage, inputs, tuple(ys), attributes))

    def check(arrays) -> None:
        # A few outputs in float64, against the bound of 16 chains of fma and a tree of 4 additions.
        last = commands[-1].inputs[1].source
        values = np.frombuffer(last.data, np.uint8).reshape(outs[0], -1)
        for out in (0, outs[0] // 2, outs[0] - 1):
            w = widen(values[out], dtype)
            for row in {0, rows - 1}:
                terms = arrays["x"][row].astype(np.float64) * w
                bound = (width / 16 + 5) * 2.0**-24 * np.abs(terms).sum()
                assert abs(arrays["y0"][row, out] - terms.sum()) <= bound

    time_commands(
        measure, commands, rows, isa, work, flops=flops, nbytes=weight_bytes,
        footprint=count * weight_bytes, check=check,
    )  # fmt: skip


def widen(data: np.ndarray, dtype: str) -> np.ndarray:
    """float64 values of encoded bytes."""
    if dtype == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return data.view({"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)


def time_commands(
    measure, commands, rows, isa, work, *, nbytes, flops=0.0, footprint=None, context=0,
    threads=None, check=None,
):  # fmt: skip
    """Time a program of like commands; the figure is microseconds a command."""
    threads = threads or work().threads
    kernels = Kernels(commands, rows, threads, isa, context)
    alone = Kernels(commands, rows, 1, BEST, context)
    results = {v.name: v for command in commands for v in command.outputs}

    def outputs(of: Kernels) -> str:
        # The cache belongs to both, so its bytes are compared as they are.
        return digest(of.arrays[n] if n in of.arrays else v.source for n, v in results.items())

    def result() -> str:
        kernels.run()
        found = outputs(kernels)
        alone.run()
        assert outputs(alone) == found, f"one thread of {BEST} computes other bits"
        if check:
            check(kernels.arrays)
        return found

    try:
        measure(
            kernels.run,
            result=result,
            count=len(commands),
            unit="us",
            work=work(
                nbytes=nbytes * len(commands),
                flops=flops * len(commands),
                footprint=footprint,
                isa=isa,
                threads=threads,
            ),
            budget=0.6,
        )
    finally:
        kernels.close()
        alone.close()


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows, context, window",
    [(1, 512, 0), (128, 128, 0), (512, 512, 0), (1, 4096, 512), (128, 4096, 512)],
)
@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize("name", ["15M", *(pytest.param(n, marks=LARGE) for n in ("135M", "1B"))])
@pytest.mark.parametrize("isa", ISAS)
def test_attention(measure, work, isa, name, dtype, rows, context, window):
    """With a window, by what it leaves to read: beside a context of as many positions."""
    if isa == "scalar" and (name != "15M" or rows > 1):
        pytest.skip("minutes, and the scalar kernels are no figure that anybody needs")
    config = SHAPES[name]
    heads, kv_heads, head_dim = (
        config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    # Decode meets one cache a layer, each read once a step.
    layers = config["num_hidden_layers"] if rows == 1 else 1
    q, y = value("q", N, heads * head_dim), value("y", N, heads * head_dim)
    commands = [
        Command(
            "attention",
            "self_attn.attn_output",
            (q, cache := kv_cache(context, kv_heads, head_dim, dtype)),
            (y,),
            {
                "heads": heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
                "cache_dtype": cache.dtype,
                "window": window,
                "scale": head_dim**-0.5,
                "soft_cap": 0.0,
            },
        )
        for _ in range(layers)
    ]
    seen = np.arange(context - rows + 1, context + 1)
    attended = int((np.minimum(seen, window) if window else seen).sum())
    read = min(context, window + rows - 1) if window else context
    nbytes = len(memoryview(commands[0].inputs[1].source)) * read // context
    time_commands(
        measure, commands, rows, isa, work, nbytes=nbytes, flops=4.0 * heads * head_dim * attended,
        footprint=layers * nbytes, context=context,
    )  # fmt: skip


# -- the others: activations that lie in the cache -------------------------------------------------

#: Bytes that the like commands of a program touch all together, as far as that takes 64 at most.
TOUCHED = 16 << 20


def row_operations(rows: int):
    """Operation -> (inputs, outputs, attributes, bytes), at the widths of SmolLM2-135M.

    Bytes: the larger of what it reads and what it writes. The limit is of reading, and a processor
    writes beside it: both added up would come out above it.
    """
    C, F, H, K, D, V = 576, 1536, 9, 3, 64, 49_152
    half, f = D // 2, 4 * rows  # bytes of one float32 column
    x, y = value("x", N, C), value("y", N, C)
    q, k, v = value("q", N, H * D), value("k", N, K * D), value("v", N, K * D)
    cos, sin = value("cos", N, half), value("sin", N, half)
    gate, up, inner = value("gate", N, F), value("up", N, F), value("inner", N, F)
    turned = value("q turned", N, H * D), value("k turned", N, K * D)
    logits, greedy = value("logits", L, V), value("greedy", L, dtype=Dtype.I32)
    table = Weights("BF16", V * C * 2).matrix(V, C)
    cache = kv_cache(rows, K, D, "F32")
    positions, slots = step_input("positions", N), step_input("slots", N)
    lengths = step_input("rope_lengths", N)
    heads = {"heads": H, "kv_heads": K, "head_dim": D, "rotary_dim": D}
    tables = {"half": half, "rows": 1, "first_length": 0, "scale": 1.0}
    norm = {"eps": 1e-5, "offset": 0.0}
    return {
        "embed": (
            (step_input("token_ids", N), table), (y,), {"vocab": V, "dim": C, "scale": 1.0},
            f * C,
        ),
        "rotary_embedding": (
            (positions, lengths, vector(half)), (cos, sin), tables, f * 2 * half,
        ),
        "rms_norm": ((x, vector(C)), (y,), {"dim": C, "groups": 1, **norm}, f * C),
        "rms_norm of heads": (
            (q, vector(D)), (turned[0],), {"dim": D, "groups": H, **norm}, f * H * D,
        ),
        "rope": ((q, k, cos, sin), turned, heads, f * ((H + K) * D + D)),
        "kv_write": (
            (k, v, slots), (cache,),
            {"kv_heads": K, "head_dim": D, "cache_dtype": cache.dtype}, f * 2 * K * D,
        ),
        "swiglu": ((gate, up), (inner,), {"dim": F, "activation": "silu"}, f * 2 * F),
        "swiglu with gelu": (
            (gate, up), (inner,), {"dim": F, "activation": "gelu_tanh"}, f * 2 * F,
        ),
        "add": ((x, y), (value("sum", N, C),), {"dim": C, "scale": 1.0}, f * 2 * C),
        "soft_cap": (
            (logits,), (value("capped", L, V),), {"dim": V, "scale": 1.0, "cap": 30.0}, f * V,
        ),
        "gather_rows": (
            (x, step_input("logit_rows", L)), (value("rows", L, C),), {"dim": C}, f * C,
        ),
        "argmax": ((logits,), (greedy,), {"vocab": V}, f * V),
        "copy": ((x,), (y,), {"dim": C}, f * C),
    }  # fmt: skip


def repeated(operation: str, rows: int) -> tuple[list[Command], int]:
    """The same command over and over, and its bytes."""
    inputs, outputs, attributes, nbytes = row_operations(rows)[operation]
    count = max(2, min(64, TOUCHED // nbytes))
    name = operation.split()[0]
    return [Command(name, operation, inputs, outputs, attributes)] * count, nbytes


@pytest.mark.parametrize("rows", [1, 16, pytest.param(128, marks=LARGE)])
@pytest.mark.parametrize("operation", row_operations(1))
@pytest.mark.parametrize("isa", ISAS)
def test_rows(measure, work, isa, operation, rows):
    """On one thread: on several, what a barrier costs would hide them. That is `test_barrier`."""
    if operation in ("copy", "gather_rows") and isa != BEST:
        pytest.skip("the C library's memcpy, which knows no lower instruction set")
    commands, nbytes = repeated(operation, rows)
    time_commands(
        measure, commands, rows, isa, work, nbytes=nbytes, footprint=nbytes, threads=1
    )


def test_barrier(measure, work):
    """A command with next to no work: what it costs all threads to meet."""
    commands, nbytes = repeated("copy", 1)
    time_commands(measure, commands, 1, BEST, work, nbytes=nbytes, footprint=nbytes)
