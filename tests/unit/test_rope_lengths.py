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


def restarting(blocks: int = 32, size: int = 4) -> BlockPool:
    return BlockPool(blocks, size, rope_length_range=(8, 9), restarts=True)


def test_over_the_border_a_sequence_starts_anew():
    sequence = compute(Sequence(restarting(), [1] * 7))
    sequence.append(1)
    assert list(sequence.rope_lengths) == [8] * 8 and sequence.computed == 7
    compute(sequence)
    sequence.append(1)
    assert list(sequence.rope_lengths) == [9] * 9
    assert (sequence.computed, list(sequence.blocks)) == (0, [])
    compute(sequence)
    sequence.append(1)
    sequence.extend([1] * 3)
    assert list(sequence.rope_lengths) == [9] * 13 and sequence.computed == 9
    sequence.pool.check([sequence.blocks])


@pytest.mark.parametrize("length, kept", [(12, 12), (9, 9), (8, 0), (3, 0), (0, 0)])
def test_a_cut_below_the_border_starts_anew(length, kept):
    """As if the tokens that are left were all there ever was."""
    sequence = compute(Sequence(restarting(), [1] * 11 + [2, 3]))
    sequence.truncate(length)
    assert sequence.computed == kept // 4 * 4  # what is left of a published block is computed again
    assert list(sequence.rope_lengths) == [9 if kept else 8] * length
    sequence.pool.check([sequence.blocks])


def test_a_fork_keeps_what_its_parent_drops():
    parent = compute(Sequence(restarting(), [1] * 8))
    child = parent.fork()
    parent.append(1)
    assert not parent.blocks and child.computed == 8
    compute(parent)
    assert not set(parent.blocks) & set(child.blocks)
    child.append(1)
    assert child.adopt_prefix() == 8 and child.blocks == parent.blocks[:2]


def test_only_what_is_rotated_alike_is_found_after_the_border():
    pool = restarting()
    compute(Sequence(pool, [1] * 8)).release()
    sequence = compute(Sequence(pool, [1] * 8))
    sequence.append(1)
    assert sequence.adopt_prefix() == 0
    compute(sequence)
    assert Sequence(pool, [1] * 10).adopt_prefix() == 8  # a long prompt, at once
    assert Sequence(pool, [1] * 8).adopt_prefix() == 4  # a short one: its last token is computed


def test_a_request_over_the_border_leaves_a_token_to_each_behind_it():
    """Steps of 4 tokens; the first request is computed again in chunks, the second goes on."""
    scheduler = Scheduler(restarting(), 4, 2, 20, 100)
    requests = [Request([i] * (7, 1)[i], max_tokens=6) for i in range(2)]
    for request in requests:
        scheduler.add(request)
    steps = []
    while scheduler.has_work:
        plan = scheduler.plan()
        steps.append([(c.request.id, c.start, c.length, c.wants_logits) for c in plan.chunks])
        scheduler.commit(plan, {c.request.id: 7 for c in plan.chunks if c.wants_logits == "last"})
    assert steps == [
        [(1, 0, 4, "none")],
        [(1, 4, 3, "last"), (2, 0, 1, "last")],
        [(1, 7, 1, "last"), (2, 1, 1, "last")],
        [(1, 0, 3, "none"), (2, 2, 1, "last")],  # 9 tokens: anew
        [(1, 3, 3, "none"), (2, 3, 1, "last")],
        [(1, 6, 3, "last"), (2, 4, 1, "last")],
        [(1, 9, 1, "last"), (2, 5, 1, "last")],
        [(1, 10, 1, "last")],
        [(1, 11, 1, "last")],
    ]
    assert not any(request.preemptions for request in requests)


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


def test_a_session_that_fails_over_the_border_is_as_before(model):
    pool = BlockPool(1, rope_length_range=(14, 15), restarts=True)
    session = Session(model.runner, sequence := Sequence(pool))
    session.prefill([1] * 14)
    with pytest.raises(CapacityError):
        session.prefill([1] * 3)
    assert list(sequence.rope_lengths) == [14] * 14
    session.decode(1)
    assert list(sequence.rope_lengths) == [15] * 15 and sequence.computed == 15
    session.reset()
    session.decode(1)
    assert list(sequence.rope_lengths) == [14]
