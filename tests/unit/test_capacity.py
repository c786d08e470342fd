"""How many blocks a cache gets, worked out by hand."""

from __future__ import annotations

import dataclasses
import os

import pytest
from checkpoints import tiny_llama_config

from kestrel.cache import paged_cache
from kestrel.cache.paged_cache import bytes_per_token, kv_dtype, memory_bytes, plan_capacity
from kestrel.dtypes import Dtype
from kestrel.errors import CapacityError, ConfigError
from kestrel.models import family_for
from kestrel.models.config import LayerKind
from kestrel.models.limits import Limits
from kestrel.models.rope_config import RopeConfig


def config(**changes):
    raw = tiny_llama_config(**changes)
    return family_for(raw, "folder").parse(raw, "config.json")


@pytest.fixture
def machine(monkeypatch):
    """Sets the memory of the machine that plan_capacity asks for."""
    return lambda nbytes: monkeypatch.setattr(paged_cache, "memory_bytes", lambda: nbytes)


def test_bytes_of_a_token():
    # 2 layers, keys and values, 2 kv heads of 8: 64 elements.
    assert bytes_per_token(config(), Dtype.F32) == 256
    assert bytes_per_token(config(), Dtype.F16) == 128
    # Llama 3 8B: 32 layers, 8 kv heads of 128.
    big = config(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32,
                 num_key_value_heads=8, head_dim=128)  # fmt: skip
    assert bytes_per_token(big, Dtype.F16) == 131_072


def test_room_for_every_sequence(machine):
    machine(2**40)
    capacity = plan_capacity(config(), Limits(), Dtype.F32)
    # 16 contexts of 128 are 128 blocks; one more for each sequence.
    assert (capacity.num_blocks, capacity.max_context, capacity.notes) == (144, 128, ())


def test_but_not_without_end(machine):
    machine(2**40)
    capacity = plan_capacity(config(max_position_embeddings=32768), Limits(), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (131_072 // 16 + 16, 32768)
    capacity = plan_capacity(config(max_position_embeddings=1048576), Limits(max_seqs=4), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (1048576 // 16 + 4, 1048576)


def test_half_of_the_memory_at_most(machine):
    machine(2 * 100 * 4096 + 4095)  # a block is 16 * 256 bytes
    capacity = plan_capacity(config(max_position_embeddings=32768), Limits(), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (100, 1600)
    (note,) = capacity.notes
    for part in ("1600", "32768", "256 bytes a token", "Limits.cache_bytes", "float16"):
        assert part in note
    assert plan_capacity(
        config(max_position_embeddings=32768), Limits(), Dtype.F16
    ).max_context == 3200  # fmt: skip


def test_the_budget_that_was_asked_for(machine):
    machine(2**40)
    for cache_bytes, blocks in ((4096, 1), (8191, 1), (8192, 2), (10**12, 8 * 16)):
        capacity = plan_capacity(config(), Limits(cache_bytes=cache_bytes), Dtype.F32)
        assert capacity.num_blocks == blocks, "no more than all sequences can use"
        assert capacity.max_context == min(128, 16 * blocks)
        assert bool(capacity.notes) == (capacity.max_context < 128)


def test_too_little_for_one_block(machine):
    machine(8191)
    with pytest.raises(CapacityError, match="4,096 bytes, 4,095 are available"):
        plan_capacity(config(), Limits(), Dtype.F32)
    with pytest.raises(CapacityError, match="4,096 bytes, 4,000 are available"):
        plan_capacity(config(), Limits(cache_bytes=4000), Dtype.F32)


def test_a_shorter_context(machine):
    machine(2**40)
    capacity = plan_capacity(config(), Limits(max_context=50, max_seqs=2), Dtype.F32)
    # 100 positions round up to 7 blocks, but two sequences of 50 end in blocks of their own: 8.
    assert capacity.max_context == 50 and capacity.num_blocks >= 8
    with pytest.raises(ConfigError) as refusal:
        plan_capacity(config(), Limits(max_context=129), Dtype.F32)
    assert refusal.value.key == "max_context"
    assert "129" in str(refusal.value) and "max_position_embeddings = 128" in str(refusal.value)


def windowed(window: int, context: int):
    plain = config(max_position_embeddings=context)
    return dataclasses.replace(plain, layers=(LayerKind(window, plain.rope),) * 2)


def test_of_a_context_behind_a_window_the_window_is_held(machine):
    machine(2**40)
    capacity = plan_capacity(windowed(4096, 2**20), Limits(max_seqs=4), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (131_072 // 16 + 4, 2**20)
    # 12,500 blocks for the 199,999 positions that a token sees before it; a step of 512 and, at
    # its two ends, 15 more: 33.9 blocks; one for each sequence.
    capacity = plan_capacity(windowed(200_000, 2**20), Limits(max_seqs=4), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (12_500 + 34 + 4, 2**20)
    # A context that is shorter than its window.
    capacity = plan_capacity(windowed(4096, 128), Limits(), Dtype.F32)
    assert (capacity.num_blocks, capacity.max_context) == (144, 128)


@pytest.mark.parametrize("blocks, context", [(1, 16), (256, 4096), (257, 2**20)])
def test_a_window_and_a_block_are_enough_for_any_context(machine, blocks, context):
    for limits in (Limits(cache_bytes=4096 * blocks), Limits()):
        machine(2 * 4096 * blocks)
        capacity = plan_capacity(windowed(4096, 2**20), limits, Dtype.F32)
        assert (capacity.num_blocks, capacity.max_context) == (blocks, context)
        assert bool(capacity.notes) == (context < 2**20)


def test_a_window_in_some_layers_frees_nothing(machine):
    machine(2**40)
    plain = config(max_position_embeddings=2**20)
    layers = (LayerKind(16, plain.rope), LayerKind(None, plain.rope))
    capacity = plan_capacity(
        dataclasses.replace(plain, layers=layers), Limits(max_seqs=1), Dtype.F32
    )
    assert capacity.num_blocks == 2**20 // 16 + 1


def test_a_context_that_its_rope_stretches(machine, monkeypatch):
    machine(2**40)
    monkeypatch.setattr(RopeConfig, "stretched", lambda self, trained: 4 * trained)
    assert plan_capacity(config(), Limits(), Dtype.F32).max_context == 512
    with pytest.raises(ConfigError) as refusal:
        plan_capacity(config(), Limits(max_context=513), Dtype.F32)
    for part in ("513 is above 512", "max_position_embeddings = 128", "RoPE"):
        assert part in str(refusal.value)


def test_dtype_names():
    assert kv_dtype("float32") is Dtype.F32 and kv_dtype("float16") is Dtype.F16
    with pytest.raises(ConfigError, match="float32 or float16, found 'bf16'"):
        kv_dtype("bf16")


def test_the_memory_of_this_machine():
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**26 < memory_bytes() <= physical
