"""Cases of the operations that depend on positions: rotary embedding, RoPE, attention."""

from __future__ import annotations

import numpy as np
from conformance.helpers import (
    Case,
    activation,
    keys_and_values,
    kv_cache,
    normal,
    output,
    step_input,
    tensor,
)

from kestrel import bounds
from kestrel.bounds import KESTREL
from kestrel.dtypes import Dtype
from kestrel.program.values import Dim

N = Dim.TOKENS


def rotary_embedding(half: int, scale: float, positions: list[int], rows: int = 1) -> Case:
    """Row r of the table holds frequencies divided by r + 1; lengths from 9 on choose row 1."""
    frequencies = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    table = np.stack([frequencies / np.float32(row + 1) for row in range(rows)])
    lengths = np.array(positions) % 7 + 6
    at = np.array(positions, np.float32)[:, None]
    chosen = table[np.clip(lengths - 8, 0, rows - 1)]
    angle = (at * chosen).astype(np.float64)  # rounded to float32, as the contract says

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


def attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: list[tuple[int, int]],
    dtype: str = "F32",
    bounded: bool = True,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Case:
    """``sequences``: (context, new tokens) of each; blocks lie scattered in the cache.

    Blocks before every new token's window hold NaN, and their entries in the table block 0.
    ``bounded=False`` leaves the expected values out: a long context makes them slow.
    """
    rng = np.random.default_rng(head_dim)
    lengths = [-(-context // 16) for context, _ in sequences]
    order = rng.permutation(sum(lengths)) + 1  # block 0 belongs to nobody
    cache = kv_cache(len(order) + 1, kv_heads, head_dim, dtype)
    keys, values = keys_and_values(cache)
    tables = np.zeros((len(sequences), max(lengths)), np.int32)
    rounded = {"F32": np.float32, "F16": np.float16}[dtype]
    queries, results, positions, start = [], [], [], 0
    for s, (context, new) in enumerate(sequences):
        blocks = order[start : start + lengths[s]]
        start += lengths[s]
        tables[s, : len(blocks)] = blocks
        q = normal(10 + s, context, heads * head_dim)
        k, v = (normal(20 + 10 * i + s, context, kv_heads * head_dim) for i in range(2))
        for kept, view, axes in ((k, keys, (1, 2, 0)), (v, values, (1, 0, 2))):
            padded = np.full((lengths[s] * 16, kv_heads, head_dim), np.nan, np.float32)
            padded[:context] = kept.reshape(context, kv_heads, head_dim)  # behind lies NaN
            parts = padded.reshape(-1, 16, kv_heads, head_dim)
            view[blocks] = parts.transpose(0, *(axis + 1 for axis in axes)).astype(rounded)
        gone = max(0, context - new + 1 - window) // 16 if window else 0
        for view in (keys, values):
            view[blocks[:gone]] = np.nan
        tables[s, :gone] = 0
        queries.append(q[context - new :])
        if bounded:
            k, v = k.astype(rounded), v.astype(rounded)
            cap = soft_cap or None
            parts = bounds.attention(q, k, v, heads, kv_heads, KESTREL, None, window or None, cap)
            results.append([part[context - new :] for part in parts])
        positions += range(context - new, context)
    new = [n for _, n in sequences]
    return Case(
        f"{heads}/{kv_heads}x{head_dim}-{dtype}-"
        + "+".join(f"{c}:{n}" for c, n in sequences)
        + f"-w{window}" * (window > 0)
        + f"-cap{soft_cap:g}" * (soft_cap > 0),
        "attention",
        (activation(np.concatenate(queries)), cache),
        (output("y", N, heads * head_dim),),
        {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "cache_dtype": Dtype(dtype),
            "scale": float(np.float32(head_dim**-0.5)),
            "window": window,
            "soft_cap": soft_cap,
        },
        [tuple(np.concatenate(parts) for parts in zip(*results))] if bounded else [],
        len(positions),
        {
            "positions": np.array(positions),
            "seq_start": np.concatenate([[0], np.cumsum(new)]),
            "context_len": np.array([context for context, _ in sequences]),
            "block_table": tables,
        },
    )
