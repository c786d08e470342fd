"""The reference backend's cache and attention against arithmetic by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from unit.test_reference_backend import F32, run

from kestrel.backends.host import HostBuffer
from kestrel.dtypes import Dtype


@pytest.mark.parametrize("dtype, kind", [(Dtype.F32, F32), (Dtype.F16, np.float16)])
def test_kv_write_puts_a_position_in_a_lane(dtype, kind):
    """Blocks of [2, K, 16 * D]: keys as [D, 16], values as [16, D]."""
    kv_heads, dim, blocks = 2, 3, 4
    cache = HostBuffer(blocks * 2 * kv_heads * dim * 16 * np.dtype(kind).itemsize)
    k = np.arange(12, dtype=F32).reshape(2, 6) + F32(0.1)
    v = -k
    slots = np.array([1 * 16 + 5, 3 * 16 + 15], np.int32)
    attributes = {"kv_heads": kv_heads, "head_dim": dim, "cache_dtype": dtype}
    run("kv_write", k, v, slots, cache, **attributes)
    flat = cache.bytes.view(kind)
    expected = np.zeros(blocks * 2 * kv_heads * dim * 16, kind)
    for n, slot in enumerate(slots):
        for head in range(kv_heads):
            for d in range(dim):
                base = (slot // 16) * 2 * kv_heads * dim * 16 + head * dim * 16
                expected[base + d * 16 + slot % 16] = kind(k[n, head * dim + d])
                base += kv_heads * dim * 16
                expected[base + (slot % 16) * dim + d] = kind(v[n, head * dim + d])
    assert flat.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype, kind", [(Dtype.F32, F32), (Dtype.F16, np.float16)])
def test_attention(dtype, kind):
    """Two sequences over scattered blocks; 4 heads over 2 kv heads; nothing unwritten is read."""
    rng = np.random.default_rng(2)
    heads, kv_heads, dim, scale = 4, 2, 5, 0.37
    lengths, new, tables = [19, 3], [2, 3], [[6, 1], [4]]
    cache = HostBuffer(8 * 2 * kv_heads * dim * 16 * np.dtype(kind).itemsize)
    cache.bytes.view(kind)[:] = np.nan
    attributes = {"kv_heads": kv_heads, "head_dim": dim, "cache_dtype": dtype}
    keys = [rng.standard_normal((n, kv_heads * dim)).astype(kind).astype(F32) for n in lengths]
    values = [rng.standard_normal((n, kv_heads * dim)).astype(kind).astype(F32) for n in lengths]
    for k, v, table in zip(keys, values, tables):
        slots = [table[n // 16] * 16 + n % 16 for n in range(len(k))]
        run("kv_write", k, v, np.array(slots, np.int32), cache, **attributes)
    positions = [17, 18, 0, 1, 2]
    inputs = SimpleNamespace(
        seq_start=np.array([0, 2, 5], np.int32),
        context_len=np.array(lengths, np.int32),
        block_table=np.array([[6, 1], [4, 0]], np.int32),
        positions=np.array(positions, np.int32),
    )
    q = rng.standard_normal((5, heads * dim)).astype(F32)
    step = SimpleNamespace(n_seqs=2, inputs=inputs)
    out = run("attention", q, cache, step=step, heads=heads, scale=scale, **attributes)

    owner = [0] * new[0] + [1] * new[1]
    for n, (sequence, position) in enumerate(zip(owner, positions)):
        for head in range(heads):
            kv = slice(head // 2 * dim, (head // 2 + 1) * dim)
            k, v = keys[sequence][:, kv].tolist(), values[sequence][:, kv].tolist()
            row = q[n, head * dim : (head + 1) * dim].tolist()
            scores = [
                float(F32(scale)) * math.fsum(a * b for a, b in zip(row, k[p]))
                for p in range(position + 1)
            ]
            weights = [math.exp(score) for score in scores]
            for d in range(dim):
                mean = math.fsum(w * v[p][d] for p, w in enumerate(weights)) / math.fsum(weights)
                assert out[n, head * dim + d] == pytest.approx(mean, abs=1e-14)


def test_attention_with_scores_that_overflow_exp():
    cache = HostBuffer(2 * 1 * 1 * 16 * 4)
    attributes = {"kv_heads": 1, "head_dim": 1, "cache_dtype": Dtype.F32}
    run("kv_write", np.array([[900], [1000]], F32), np.array([[5], [7]], F32),
        np.array([0, 1], np.int32), cache, **attributes)  # fmt: skip
    inputs = SimpleNamespace(
        seq_start=np.array([0, 1]), context_len=np.array([2]), block_table=np.array([[0]]),
        positions=np.array([1]),
    )  # fmt: skip
    step = SimpleNamespace(n_seqs=1, inputs=inputs)
    out = run("attention", np.ones((1, 1), F32), cache, step=step, heads=1, scale=1.0, **attributes)
    assert out.tolist() == [[7.0]], "exp(-100) does not show beside 1"


def test_attention_sees_its_window_alone():
    cache = HostBuffer(2 * 1 * 1 * 16 * 4)
    attributes = {"kv_heads": 1, "head_dim": 1, "cache_dtype": Dtype.F32}
    run("kv_write", np.zeros((4, 1), F32), np.array([[math.nan], [1], [2], [6]], F32),
        np.arange(4, dtype=np.int32), cache, **attributes)  # fmt: skip
    inputs = SimpleNamespace(
        seq_start=np.array([0, 2]), context_len=np.array([4]), block_table=np.array([[0]]),
        positions=np.array([2, 3]),
    )  # fmt: skip
    step = SimpleNamespace(n_seqs=1, inputs=inputs)
    q = np.ones((2, 1), F32)
    out = run("attention", q, cache, step=step, heads=1, scale=1.0, window=2, **attributes)
    assert out.tolist() == [[1.5], [4.0]], "equal weights over the last two values"


def test_capped_scores():
    """Scores 3 and -3 capped at 1: weights e^tanh(3) and e^-tanh(3)."""
    cache = HostBuffer(2 * 1 * 1 * 16 * 4)
    attributes = {"kv_heads": 1, "head_dim": 1, "cache_dtype": Dtype.F32}
    run("kv_write", np.array([[3], [-3]], F32), np.array([[1], [0]], F32),
        np.array([0, 1], np.int32), cache, **attributes)  # fmt: skip
    inputs = SimpleNamespace(
        seq_start=np.array([0, 1]), context_len=np.array([2]), block_table=np.array([[0]]),
        positions=np.array([1]),
    )  # fmt: skip
    step = SimpleNamespace(n_seqs=1, inputs=inputs)
    q = np.ones((1, 1), F32)
    out = run("attention", q, cache, step=step, heads=1, scale=1.0, soft_cap=1.0, **attributes)
    assert out[0, 0] == pytest.approx(1 / (1 + math.exp(-2 * math.tanh(3))), rel=1e-14)
