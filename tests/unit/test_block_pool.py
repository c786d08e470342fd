"""BlockPool: reference counts, prefix index, order of reuse."""

from __future__ import annotations

import random
import sys
import threading

import pytest

from kestrel.cache.block_pool import BlockPool
from kestrel.errors import CapacityError


def publish_chain(pool: BlockPool, tokens: list[int]) -> list[int]:
    """Allocate and publish the full blocks of ``tokens``, as a sequence would."""
    blocks: list[int] = []
    for i in range(0, len(tokens) - pool.block_size + 1, pool.block_size):
        (block,) = pool.allocate(1)
        blocks.append(publish(pool, blocks, tokens[i : i + pool.block_size], block))
    return blocks


def publish(pool: BlockPool, before: list[int], tokens: list[int], block: int) -> int:
    """Publish a block behind others, and let go of it if another has its content."""
    used = pool.publish(before[-1] if before else None, tokens, block)
    if used != block:
        pool.release([block])
    return used


def test_allocates_each_block_once_and_says_what_is_missing():
    pool = BlockPool(3, 16, limit="--cache-memory")
    assert sorted(pool.allocate(2)) == [0, 1]
    assert pool.available == 1
    with pytest.raises(CapacityError) as error:
        pool.allocate(2)
    for part in ("2 more blocks", "1 of 3 available", "16 positions", "--cache-memory"):
        assert part in str(error.value)
    assert isinstance(error.value, MemoryError)
    assert pool.available == 1 and pool.try_allocate(2) is None
    assert pool.allocate(1) == [2] and pool.allocate(0) == []
    pool.check([[0, 1], [2]])


@pytest.mark.parametrize("num_blocks, block_size", [(0, 16), (-1, 16), (4, 0)])
def test_refuses_an_empty_cache(num_blocks, block_size):
    with pytest.raises(CapacityError, match="at least 1"):
        BlockPool(num_blocks, block_size)


def test_counts_shares_and_refuses_to_release_too_often():
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.available == 1
    pool.release(blocks)
    assert pool.available == 2
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)
    with pytest.raises(ValueError, match="held"):
        pool.share(blocks)
    pool.check([])


def test_finds_only_full_blocks_of_an_equal_prefix():
    pool = BlockPool(8, 4)
    blocks = publish_chain(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert len(blocks) == 2
    for tokens, expected in [
        ([1, 2, 3], []),
        ([1, 2, 3, 4], blocks[:1]),
        ([1, 2, 3, 4, 5, 6, 7], blocks[:1]),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 9], blocks),
        ([1, 2, 3, 5, 5, 6, 7, 8], []),
        ([1, 2, 3, 4, 5, 6, 7, 9], blocks[:1]),
        ([5, 6, 7, 8], []),  # the second block's tokens, without what was before them
    ]:
        found = pool.find_prefix(tokens)
        assert found == expected
        pool.check([blocks, found])
        pool.release(found)
    assert pool.find_prefix([1, 2, 3, 4, 5, 6, 7, 8], max_blocks=1) == blocks[:1]


class Colliding(tuple):
    """A key whose hash is that of every other key."""

    def __hash__(self):
        return 0


class CollidingPool(BlockPool):
    @staticmethod
    def _key(serial, tokens):
        return Colliding((serial, *tokens))


def test_a_hash_collision_finds_nothing_foreign():
    pool = CollidingPool(4, 2)
    first, second = publish_chain(pool, [1, 2, 3, 4])
    other = publish_chain(pool, [3, 4])
    assert pool.find_prefix([9, 9]) == []
    assert pool.find_prefix([3, 4, 3, 4]) == other
    assert pool.find_prefix([1, 2, 3, 4]) == [first, second]


def test_freed_blocks_stay_findable_and_the_least_recently_used_is_reused_first():
    pool = BlockPool(4, 2)
    old, new = publish_chain(pool, [1, 1, 2, 2]), publish_chain(pool, [3, 3])
    pool.release(old)
    pool.release(new)
    assert (pool.available, pool.cached) == (4, 3)
    pool.release(pool.find_prefix([1, 1, 2, 2]))  # used again: now `new` is the oldest
    assert pool.allocate(1) == [3]  # blank ones first
    assert pool.allocate(1) == new
    assert pool.find_prefix([3, 3]) == []
    # A prefix goes after what continues it.
    assert pool.allocate(1) == [old[1]]
    assert pool.find_prefix([1, 1, 2, 2]) == [old[0]]
    assert pool.available == 0


def test_a_reused_block_takes_its_continuations_out_of_reach():
    pool = BlockPool(3, 2)
    parent, child = publish_chain(pool, [1, 1, 2, 2])
    pool.release([parent])  # out of order: the child is still held
    assert sorted(pool.allocate(2)) == sorted([parent, 2])
    # `parent` now holds other tokens; the child must not continue them, nor a new [1, 1].
    assert pool.publish(None, [7, 7], parent) == parent
    assert pool.find_prefix([7, 7, 2, 2]) == [parent]
    assert pool.publish(None, [1, 1], 2) == 2
    assert pool.find_prefix([1, 1, 2, 2]) == [2]
    pool.check([[parent, parent, 2, 2], [child]])


def test_equal_blocks_become_one():
    pool = BlockPool(4, 2)
    first = publish_chain(pool, [1, 1, 2, 2])
    second = publish_chain(pool, [1, 1, 2, 2])
    assert first == second and pool.available == 2
    pool.check([first, second])
    pool.release(first)
    assert pool.available == 2
    pool.release(second)
    third = publish_chain(pool, [1, 1])  # the other is cached now, and comes back
    assert third == first[:1]
    pool.check([third])


def test_only_a_private_full_block_after_a_published_one_can_be_published():
    pool = BlockPool(4, 2)
    (published,) = publish_chain(pool, [1, 1])
    private, shared = pool.allocate(2)
    pool.share([shared])
    assert pool.is_private(private)
    assert not pool.is_private(published) and not pool.is_private(shared)
    assert not pool.is_private(3)
    with pytest.raises(ValueError, match="only a private block"):
        pool.publish(None, [2, 2], shared)
    with pytest.raises(ValueError, match="only a private block"):
        pool.publish(None, [1, 1], published)
    with pytest.raises(ValueError, match="after a published block"):
        pool.publish(shared, [2, 2], private)
    with pytest.raises(ValueError, match="expected 2 tokens"):
        pool.publish(published, [2, 2, 2], private)


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_the_invariants(seed):
    """Against a plain model: what each holder's blocks must contain."""
    rng = random.Random(seed)
    pool = BlockPool(rng.randint(1, 12), rng.choice([1, 2, 4]))
    size = pool.block_size
    content: dict[int, list[int]] = {}  # block -> all tokens up to its end, when last published
    holders: list[tuple[list[int], list[int]]] = []
    for _ in range(150):
        action = rng.random()
        if action < 0.5:
            tokens = [rng.randrange(2) for _ in range(size * rng.randint(1, 5))]
            blocks = pool.find_prefix(tokens)
            for i, block in enumerate(blocks):
                assert content[block] == tokens[: (i + 1) * size]
            for i in range(len(blocks), len(tokens) // size):
                new = pool.try_allocate(1)
                if new is None:
                    assert pool.available == 0
                    break
                part = tokens[i * size : (i + 1) * size]
                blocks.append(publish(pool, blocks, part, new[0]))
                content[blocks[-1]] = tokens[: (i + 1) * size]
            holders.append((tokens, blocks))
        elif holders and action < 0.7:
            tokens, blocks = rng.choice(holders)
            pool.share(blocks)
            holders.append((tokens, list(blocks)))
        elif holders:
            pool.release(holders.pop(rng.randrange(len(holders)))[1])
        pool.check(blocks for _, blocks in holders)
    for _, blocks in holders:
        pool.release(blocks)
    pool.check([])
    assert pool.available == pool.num_blocks


def test_threads_share_a_pool():
    pool = BlockPool(64, 2)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(1000):
                tokens = rng.choices(range(2), k=8)
                blocks = pool.find_prefix(tokens)
                for i in range(len(blocks), 4):
                    (block,) = pool.allocate(1)
                    blocks.append(publish(pool, blocks, tokens[2 * i : 2 * i + 2], block))
                pool.share(blocks)
                pool.release(blocks)
                pool.release(blocks)
        except BaseException as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    pool.check([])
