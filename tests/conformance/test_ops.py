"""Every operation on every backend and instruction set, over awkward shapes, within its bound."""

import numpy as np
import pytest
from conformance.cases import every_case
from conformance.helpers import (
    GUARD_BYTE,
    Case,
    activation,
    bits,
    check,
    cpu,
    isas,
    keys_and_values,
    kv_cache,
    normal,
    run,
    step_input,
)

from kestrel.backends.reference import ReferenceBackend
from kestrel.dtypes import Dtype
from kestrel.program.program import OPERATIONS
from kestrel.program.values import Dim

CASES = every_case()


def test_every_operation_has_cases():
    assert {case.operation for case in CASES} | {"kv_write"} == set(OPERATIONS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_within_the_bounds(case):
    check(case, run(ReferenceBackend(), case))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_is_within_the_bounds(case, isa):
    check(case, run(cpu(isa), case))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_instruction_set_gives_the_same_bits(case):
    scalar = bits(run(cpu("scalar"), case))
    for isa in isas():
        assert bits(run(cpu(isa), case)) == scalar, isa


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_thread_count_gives_the_same_bits(case):
    alone = bits(run(cpu(isas()[-1]), case))
    for threads in (2, 3):
        assert bits(run(cpu(isas()[-1], threads), case)) == alone, threads


@pytest.mark.parametrize("dtype", ["F32", "F16"])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 1), (1, 16), (2, 15), (3, 17), (2, 33)])
@pytest.mark.parametrize("isa", isas())
def test_kv_write_puts_each_row_into_its_slot_and_touches_nothing_else(
    isa, kv_heads, head_dim, dtype
):
    slots = np.array([16, 79, 33, 34, 47, 48])  # blocks 1 to 4; block 0 is nobody's
    k, v = (normal(seed, len(slots), kv_heads * head_dim) for seed in (1, 2))
    k[0, 0], v[0, 0] = 65519.0, 2.0**-25 * 3  # the largest finite half, and a subnormal one
    cache = kv_cache(6, kv_heads, head_dim, dtype)
    keys, values = keys_and_values(cache)
    before = np.frombuffer(cache.source, np.uint8).copy()
    attributes = {"kv_heads": kv_heads, "head_dim": head_dim, "cache_dtype": Dtype(dtype)}
    inputs = (activation(k), activation(v), step_input("slots", Dim.TOKENS))
    step = {"slots": slots, "token_ids": np.zeros(len(slots))}
    run(cpu(isa), Case("", "kv_write", inputs, (cache,), attributes, [], len(slots), step))

    kind = {"F32": np.float32, "F16": np.float16}[dtype]  # NumPy rounds to nearest, ties to even
    block, offset = slots // 16, slots % 16
    rows = (len(slots), kv_heads, head_dim)
    np.testing.assert_array_equal(keys[block, :, :, offset], k.reshape(rows).astype(kind))
    np.testing.assert_array_equal(values[block, :, offset, :], v.reshape(rows).astype(kind))
    # Put the guard back where the rows went: then nothing may differ from before.
    guard = np.frombuffer(bytes([GUARD_BYTE]) * kind().nbytes, kind)[0]
    keys[block, :, :, offset] = guard
    values[block, :, offset, :] = guard
    np.testing.assert_array_equal(np.frombuffer(cache.source, np.uint8), before)
