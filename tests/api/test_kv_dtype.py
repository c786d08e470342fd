"""A float16 cache: exact within itself, and away from float32 by what its rounding explains."""

from __future__ import annotations

import numpy as np
import pytest
from api.runs import alone, cold, long_prompt, together

import kestrel
from kestrel import _ops
from kestrel.errors import ConfigError


@pytest.fixture(scope="module")
def half():
    with kestrel.load(threads=1, kv_dtype="float16") as model:
        yield model


def test_half_the_memory(half, loaded):
    assert half.cache.num_blocks == loaded.cache.num_blocks
    assert half.cache.nbytes * 2 == loaded.cache.nbytes


def test_exact_within_itself(half):
    ids = long_prompt(half, 40)
    cold(half)
    expected = alone(half, ids)
    assert alone(half, ids) == expected, "with a warm prefix"
    for chunk in (1, 7, 16):
        cold(half)
        assert alone(half, ids, chunk=chunk) == expected
    prompts = [ids[start:] for start in range(8)]
    for prompt, rows in zip(prompts, together(half, prompts)):
        assert alone(half, prompt) == rows
    for isa in _ops.isas():
        with kestrel.load(isa=isa, threads=2, kv_dtype="float16") as model:
            assert alone(model, ids) == expected


def test_the_difference_to_float32_is_that_of_the_rounding(half, loaded):
    """Layer 0, where both caches hold roundings of the same keys and values.

    Rounding to float16 moves a key by 2**-11 of itself, so a score by at most
    e = 2**-11 * scale * |q| . |k|, and a softmax weight by a factor within exp(+-2e). The output,
    a mean of values that are themselves rounded, moves by at most
    (exp(2e) * (1 + 2**-11) - 1) * max |v|. Twice 2**-11 leaves room for float32 arithmetic.
    """
    ids, layer = long_prompt(loaded, 40), "model.layers.0.self_attn"
    exact = loaded.trace(ids, f"{layer}.*")
    found = half.trace(ids, f"{layer}.*")
    config = loaded.config
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    for stage in ("q_rope", "k_rope", "v_proj"):
        assert exact[f"{layer}.{stage}"].tobytes() == found[f"{layer}.{stage}"].tobytes()
    q = np.abs(exact[f"{layer}.q_rope"].reshape(40, heads, dim).astype(np.float64))
    k = np.abs(exact[f"{layer}.k_rope"].reshape(40, kv_heads, dim).astype(np.float64))
    v = np.abs(exact[f"{layer}.v_proj"].reshape(40, kv_heads, dim).astype(np.float64))
    group, unit = heads // kv_heads, 2.0**-10
    difference = np.abs(
        exact[f"{layer}.attn_output"].astype(np.float64) - found[f"{layer}.attn_output"]
    ).reshape(40, heads, dim)
    assert difference.max() > 0
    for n in range(40):
        for head in range(heads):
            e = unit * config.attention_scale * (k[: n + 1, head // group] @ q[n, head]).max()
            largest = v[: n + 1, head // group].max(axis=0)
            assert (difference[n, head] <= (np.exp(2 * e) * (1 + unit) - 1) * largest).all()


def test_names():
    for name in ("half", "bfloat16", "", None, 16):
        with pytest.raises(ConfigError, match="kv_dtype: expected float32 or float16"):
            kestrel.load(kv_dtype=name)
