"""Windows: which blocks go back while a sequence grows, and how little cache a long one needs.

A window W: the token at position p sees the positions j with p - W < j <= p.
"""

from __future__ import annotations

import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence, blocks_needed, window_blocks
from kestrel.engine.request import Request
from kestrel.engine.scheduler import Scheduler
from kestrel.errors import CapacityError
from kestrel.session import Session


def compute(sequence: Sequence, n: int | None = None) -> Sequence:
    n = len(sequence.tokens) - sequence.computed if n is None else n
    sequence.reserve(n)
    sequence.advance(n)
    return sequence


@pytest.mark.parametrize(
    "window, kept",
    [
        (1, 1),  # nothing is seen, but the last full block is what the next is published behind
        (2, 1),
        (17, 1),  # the position at offset 0 sees 16 before it
        (18, 2),
        (4096, 256),
        (4098, 257),
    ],
)
def test_full_blocks_that_a_window_needs(window, kept):
    assert window_blocks(window, 16) == kept
    assert blocks_needed(10**6, 16, window) == kept + 1
    assert blocks_needed(16, 16, window) == 1 and blocks_needed(17, 16, window) == 2


@pytest.mark.parametrize(
    "window, freed",  # after computing 4, 8, 11, 12 and 20 positions of blocks of 4
    [
        (4, [0, 1, 1, 2, 4]),  # position 8 sees 5 to 8: block 0 goes
        (5, [0, 1, 1, 2, 4]),  # position 8 sees 4 to 8
        (6, [0, 0, 0, 1, 3]),  # position 8 sees 3 to 8; position 12 sees 7 to 12
        (1, [0, 1, 1, 2, 4]),
        (100, [0, 0, 0, 0, 0]),
    ],
)
def test_blocks_that_left_the_window_go_back(window, freed):
    pool = BlockPool(8, 4, window=window)
    sequence = Sequence(pool, range(20))
    found = []
    for computed in (4, 8, 11, 12, 20):
        compute(sequence, computed - sequence.computed)
        found.append(sequence.freed)
        assert len(sequence.blocks) == -(-computed // 4)
        pool.check([sequence.held])
    assert found == freed
    assert pool.available == 8 - 5 + freed[-1]
    sequence.release()
    assert (sequence.freed, pool.available) == (0, 8)


def test_what_went_back_is_found_again_and_dropped_at_once():
    pool = BlockPool(8, 4, window=5)
    sequence = compute(Sequence(pool, range(20)))
    assert pool.cached == 4
    other = Sequence(pool, range(18))
    assert other.adopt_prefix() == 16
    assert other.freed == 3 and list(other.held) == [3]
    pool.check([sequence.held, other.held])
    assert compute(other).freed == 3


def test_a_fork_shares_what_is_held():
    pool = BlockPool(8, 4, window=6)
    parent = compute(Sequence(pool, range(14)))
    child = parent.fork()
    assert (parent.freed, child.freed, child.computed) == (1, 1, 12)
    assert child.held == parent.blocks[1:3]
    parent.release()
    pool.check([child.held])
    child.extend(range(6))
    assert compute(child).freed == 3


def test_a_cut_behind_the_window_goes_on_and_one_before_it_starts_again():
    pool = BlockPool(8, 4, window=5)
    sequence = compute(Sequence(pool, range(18)))
    sequence.truncate(17)  # the last block is private
    assert (sequence.computed, sequence.freed) == (17, 3)
    sequence.truncate(15)  # position 12 sees 8 and on, of a block that went back
    assert (sequence.computed, sequence.freed, len(sequence.blocks)) == (0, 0, 0)
    assert sequence.tokens == list(range(15))
    pool.check([])
    assert sequence.adopt_prefix() == 12, "nobody else took the blocks meanwhile"
    sequence.release()
    pool.release(pool.allocate(8))
    assert sequence.adopt_prefix() == 0


@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_a_long_text_in_a_cache_of_a_window_and_a_chunk(chunk):
    # A chunk of n may touch n/16 blocks and two more that it fills in part.
    pool = BlockPool(-(-(40 - 1) // 16) + (chunk + 2 * 15) // 16, window=40)
    sequence = Sequence(pool, range(5000))
    sequence.reserve(sequence.ahead(5000, chunk))
    lengths = []
    while sequence.computed < 5000:
        lengths.append(sequence.fitting(min(chunk, 5000 - sequence.computed)))
        compute(sequence, lengths[-1])
    assert lengths == [chunk] * (5000 // chunk) + [5000 % chunk] * (5000 % chunk > 0)
    pool.check([sequence.held])


def test_in_a_smaller_cache_chunks_get_shorter():
    pool = BlockPool(4, 4, window=9)  # 2 blocks seen, and 2 more
    sequence = Sequence(pool, range(30))
    lengths = []
    while sequence.computed < 30:
        lengths.append(sequence.fitting(min(10, 30 - sequence.computed)))
        compute(sequence, lengths[-1])
    # 10; up to 16, all that there is; then from 16 on two blocks are kept and two are free.
    assert lengths == [10, 6, 8, 6]
    assert Sequence(BlockPool(4, 4), range(30)).fitting(30) == 30


def test_without_a_window_all_is_reserved_ahead():
    sequence = Sequence(BlockPool(4, 4), range(100))
    assert sequence.ahead(100, 8) == 100
    with pytest.raises(CapacityError):
        sequence.reserve(100)


@pytest.mark.parametrize("blocks", [256 + 33, 257])
def test_a_request_of_100_000_tokens_in_a_cache_of_5_000(blocks):
    pool = BlockPool(blocks, window=4096)
    scheduler = Scheduler(pool, 512, 16, 200_000, 100)
    request = Request([1] * 100_000, max_tokens=40)
    scheduler.add(request)
    lengths = []
    while scheduler.has_work:
        plan = scheduler.plan()
        pool.check([request.sequence.held])
        lengths += [chunk.length for chunk in plan.chunks]
        ended = scheduler.commit(plan, {c.request.id: 7 for c in plan.chunks[-1:]})
    assert ended[0].reason == "length" and ended[0].note == "" and request.preemptions == 0
    assert sum(lengths) == 100_000 + 39 and len(request.sequence.tokens) == 100_040
    assert max(lengths) == 512


def test_a_window_that_does_not_fit_is_a_context_that_does_not():
    scheduler = Scheduler(BlockPool(256, window=4096), 512, 16, 200_000, 100)
    with pytest.raises(CapacityError, match="5000 tokens and one more need 257 blocks.* has 256"):
        scheduler.add(Request([1] * 5000))
    scheduler.add(Request([1] * 4095))


def test_a_newcomer_waits_for_its_window_not_for_its_prompt():
    pool = BlockPool(20, 4, window=16)
    scheduler = Scheduler(pool, 8, 4, 1000, 100)
    for _ in range(2):
        scheduler.add(Request([1] * 4, max_tokens=2))
    scheduler.add(Request([2] * 500, max_tokens=2))
    plan = scheduler.plan()
    assert [(c.request.id, c.length) for c in plan.chunks] == [(1, 4), (2, 4)]
    scheduler.commit(plan, {1: 1, 2: 1})
    plan = scheduler.plan()
    assert [(c.request.id, c.length) for c in plan.chunks] == [(1, 1), (2, 1), (3, 6)]
    # 24 positions, a window and a step, are reserved for it; 2 and 2 blocks are the others'.
    assert pool.available == 20 - 3 - 6, "the first block of the two is not yet one"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("windows"))
    with kestrel.load(folder, backend="null", limits=kestrel.Limits(8, 2)) as model:
        yield model


@pytest.fixture
def session(model):
    return Session(model.runner, Sequence(BlockPool(5, window=20)))  # 2 blocks seen, and 3


def test_a_session_goes_on_in_a_small_cache(model, session):
    limit = session.context_limit
    assert limit > 5 * 16
    session.prefill([1] * (limit - 1))
    session.decode(1)
    assert len(session) == limit
    session.truncate(3)
    session.decode(1)
    assert len(session) == 4


def test_an_interrupted_session_has_its_tokens(monkeypatch, model, session):
    session.prefill([1] * 40)
    steps, run = [], model.runner.run

    def interrupted(rows):
        steps.append(rows[0][2])
        if len(steps) == 6:
            raise KeyboardInterrupt
        return run(rows)

    with monkeypatch.context() as patch:
        patch.setattr(model.runner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.prefill([2] * 60)
    assert session.tokens == [1] * 40
    session.prefill([2] * 60)  # from the start, or what is still there of it
    assert session.tokens == [1] * 40 + [2] * 60
