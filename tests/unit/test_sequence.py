"""Sequence: growing, adopting a prefix, forking, cutting, worked out by hand."""

from __future__ import annotations

import pytest

from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence
from kestrel.errors import CapacityError


def compute(sequence: Sequence, n: int | None = None) -> Sequence:
    """As a step would: reserve, (run), advance."""
    n = len(sequence.tokens) - sequence.computed if n is None else n
    sequence.reserve(n)
    sequence.advance(n)
    return sequence


def test_blocks_grow_with_the_positions_to_compute():
    pool = BlockPool(4, 16)
    sequence = Sequence(pool, range(40))
    assert [sequence.missing(n) for n in (0, 1, 16, 17, 40)] == [0, 1, 1, 2, 3]
    sequence.reserve(17)
    assert len(sequence.blocks) == 2 and sequence.computed == 0
    sequence.advance(17)
    assert sequence.computed == 17
    assert [pool.is_private(block) for block in sequence.blocks] == [False, True]
    assert sequence.is_writable(17, 15)
    assert not sequence.is_writable(17, 16)  # no block yet
    assert not sequence.is_writable(15, 3)  # published
    with pytest.raises(CapacityError, match="3 more blocks"):
        sequence.reserve(60)
    assert not sequence.try_reserve(60) and len(sequence.blocks) == 2
    assert sequence.try_reserve(47) and len(sequence.blocks) == 4
    sequence.release()
    assert len(sequence.blocks) == sequence.computed == 0 and len(sequence.tokens) == 40
    pool.check([])


def test_advance_needs_tokens_and_blocks():
    sequence = Sequence(BlockPool(4, 4), [1, 2])
    with pytest.raises(AssertionError):
        sequence.advance(1)
    sequence.reserve(4)
    with pytest.raises(AssertionError):
        sequence.advance(3)


@pytest.mark.parametrize("length, adopted", [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (20, 8)])
def test_adopts_the_longest_prefix_but_leaves_a_token_to_compute(length, adopted):
    pool = BlockPool(8, 4)
    compute(Sequence(pool, range(10))).release()
    sequence = Sequence(pool, range(length))
    assert sequence.adopt_prefix() == sequence.computed == adopted
    assert len(sequence.blocks) == adopted // 4
    pool.check([sequence.blocks])


def test_two_that_compute_the_same_prefix_share_it_afterwards():
    pool = BlockPool(8, 4)
    a, b = Sequence(pool, [1] * 6), Sequence(pool, [1] * 4 + [2, 2])
    a.reserve(6)
    b.reserve(6)
    assert pool.available == 4
    a.advance(6)
    b.advance(6)
    assert a.blocks[0] == b.blocks[0] and a.blocks[1] != b.blocks[1]
    assert pool.available == 5
    pool.check([a.blocks, b.blocks])


def test_fork_shares_full_blocks_and_computes_the_rest_again():
    pool = BlockPool(8, 4)
    parent = compute(Sequence(pool, range(10)))
    child = parent.fork()
    assert child.tokens == parent.tokens and child.tokens is not parent.tokens
    assert child.computed == 8 and list(child.blocks) == list(parent.blocks[:2])
    child.append(99)
    compute(child)
    assert parent.tokens == list(range(10)) and parent.computed == 10
    assert child.blocks[2] != parent.blocks[2]
    pool.check([parent.blocks, child.blocks])
    parent.release()
    assert child.is_writable(11, 1) and pool.available == 5
    assert Sequence(pool, [1]).fork().computed == 0


@pytest.mark.parametrize(
    "length, computed, blocks",
    [
        (10, 10, 3),  # nothing to cut
        (9, 9, 3),  # inside the private block
        (8, 8, 2),  # between two blocks
        (7, 4, 1),  # inside a published block: computed again from its start
        (1, 0, 0),
        (0, 0, 0),
    ],
)
def test_truncate(length, computed, blocks):
    pool = BlockPool(8, 4)
    sequence = compute(Sequence(pool, range(10)))
    sequence.truncate(length)
    assert sequence.tokens == list(range(length))
    assert (sequence.computed, len(sequence.blocks)) == (computed, blocks)
    pool.check([sequence.blocks])
    assert Sequence(pool, range(10)).adopt_prefix() == 8  # what was published stays findable


def test_truncate_drops_reserved_blocks_and_refuses_other_lengths():
    pool = BlockPool(8, 4)
    sequence = compute(Sequence(pool, range(10)), 2)
    sequence.reserve(20)
    sequence.truncate(5)
    assert sequence.computed == 2 and len(sequence.blocks) == 2
    for length in (-1, 6):
        with pytest.raises(ValueError, match="5 tokens"):
            sequence.truncate(length)
