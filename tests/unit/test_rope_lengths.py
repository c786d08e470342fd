"""Lengths that tokens are rotated by: who gives which, and which blocks may be shared."""

from __future__ import annotations

import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence
from kestrel.engine.request import Request
from kestrel.engine.scheduler import Scheduler
from kestrel.errors import CapacityError
from kestrel.session import Session


def compute(sequence: Sequence) -> Sequence:
    n = len(sequence.tokens) - sequence.computed
    sequence.reserve(n)
    sequence.advance(n)
    return sequence


def test_a_prompt_then_tokens_one_by_one():
    sequence = Sequence(BlockPool(8, 4, rope_length_range=(2, 7)), [1] * 3)
    assert list(sequence.rope_lengths) == [3, 3, 3]
    for _ in range(2):
        sequence.append(1)
    sequence.extend([1, 1])
    sequence.append(1)
    assert list(sequence.rope_lengths) == [3, 3, 3, 4, 5, 7, 7, 7]  # 8 counts as 7
    child = sequence.fork()
    sequence.truncate(4)
    sequence.extend([])
    sequence.append(1)
    assert list(sequence.rope_lengths) == [3, 3, 3, 4, 5]
    sequence.release()
    assert list(sequence.rope_lengths) == [3, 3, 3, 4, 5]
    assert list(child.rope_lengths) == [3, 3, 3, 4, 5, 7, 7, 7]
    empty = Sequence(sequence.pool)
    empty.append(1)
    assert list(empty.rope_lengths) == [2]  # 1 counts as 2


def test_nothing_is_kept_where_nothing_follows_the_length():
    sequence = Sequence(BlockPool(8, 4), [1] * 3)
    sequence.append(1)
    sequence.extend([1, 1])
    assert sequence.rope_lengths is None and sequence.fork().rope_lengths is None
    sequence.truncate(1)
    assert sequence.rope_lengths is None


@pytest.mark.parametrize(
    "length, found",
    [
        (7, 4),  # up to 8 all are alike
        (8, 4),
        (9, 0),
        (11, 0),
        (12, 8),  # as long as the prompt that is there
        (13, 0),
        (16, 12),  # from 15 on all are alike
        (17, 12),
    ],
)
def test_blocks_are_shared_by_prompts_that_are_rotated_alike(length, found):
    pool = BlockPool(32, 4, rope_length_range=(8, 15))
    for known in (8, 12, 15):
        compute(Sequence(pool, [1] * known)).release()
    sequence = Sequence(pool, [1] * length)
    assert sequence.adopt_prefix() == found
    pool.check([sequence.blocks])


def test_two_at_once_become_one_only_when_rotated_alike():
    pool = BlockPool(32, 4, rope_length_range=(4, 32))
    a, b, c = (Sequence(pool, [1] * n) for n in (8, 8, 9))
    for sequence in (a, b, c):
        sequence.reserve(8)
    for sequence in (a, b, c):
        sequence.advance(8)
    assert a.blocks == b.blocks and not set(a.blocks) & set(c.blocks)


def test_a_generated_block_is_found_by_what_was_generated_alike():
    pool = BlockPool(32, 4, rope_length_range=(4, 32))
    grown = compute(Sequence(pool, [1] * 4))
    for _ in range(6):
        grown.append(1)
        compute(grown)
    # A prompt of 10 rotates its second block by 10, not by 5 to 8. The first: by 10, not by 4.
    assert Sequence(pool, [1] * 10).adopt_prefix() == 0
    again = Sequence(pool, [1] * 4)
    for _ in range(6):
        again.append(1)
    assert again.adopt_prefix() == 8 and again.blocks == grown.blocks[:2]


def test_what_is_left_of_a_long_prompt_is_not_taken_for_a_short_one():
    pool = BlockPool(32, 4, rope_length_range=(8, 32))
    cut = Sequence(pool, [1] * 20)
    cut.truncate(2)
    cut.extend([1] * 3)
    assert list(cut.rope_lengths) == [20, 20, 8, 8, 8]
    compute(cut)
    assert Sequence(pool, [1] * 5).adopt_prefix() == 0


def test_a_preempted_request_is_computed_again_by_the_lengths_it_had():
    pool = BlockPool(5, 4, rope_length_range=(1, 100))
    scheduler = Scheduler(pool, 16, 2, 16, 100)
    requests = [Request([i] * 5, max_tokens=8) for i in range(2)]
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        plan = scheduler.plan()
        scheduler.commit(plan, {c.request.id: 7 for c in plan.chunks if c.wants_logits == "last"})
    assert requests[1].preemptions > 0
    for request in requests:
        assert list(request.sequence.rope_lengths) == [5] * 5 + [6, 7, 8, 9, 10, 11, 12, 13]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("lengths"))
    with kestrel.load(folder, backend="null", limits=kestrel.Limits(4, 1)) as model:
        yield model


def test_a_session_counts_each_call_whatever_its_chunks(model):
    for chunk in (1, 3, None):
        pool = BlockPool(1, rope_length_range=(2, 9))
        sequence = Sequence(pool)
        session = Session(model.runner, sequence)
        session.prefill([1, 2, 3, 4, 5], chunk)
        session.decode(6)
        session.prefill([7, 8])
        with pytest.raises(CapacityError):
            session.prefill([1] * 9)
        session.decode(9)
        assert list(sequence.rope_lengths) == [5, 5, 5, 5, 5, 6, 8, 8, 9]
        session.truncate(6)
        session.prefill([1] * 5)
        assert list(sequence.rope_lengths) == [5, 5, 5, 5, 5, 6, 9, 9, 9, 9, 9]  # 11 counts as 9
