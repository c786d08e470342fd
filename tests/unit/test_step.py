"""fill: the arrays of a step, worked out by hand, and every value it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence
from kestrel.engine.step import StepArrays, StepLimits, StepShape, check_ids, fill
from kestrel.errors import CapacityError, RequestError

N, S, L, MAX_BLOCKS = 24, 3, 8, 3
LIMITS = StepLimits(vocab_size=100, max_context=40, num_slots=8 * 16)
SHAPES = {
    "token_ids": N,
    "positions": N,
    "rope_lengths": N,
    "slots": N,
    "seq_start": S + 1,
    "context_len": S,
    "block_table": (S, MAX_BLOCKS),
    "logit_rows": L,
}


@pytest.fixture(params=["memoryview", "numpy"])
def inputs(request):
    arrays = {name: np.full(shape, -1, np.int32) for name, shape in SHAPES.items()}
    if request.param == "memoryview":
        arrays = {name: memoryview(array) for name, array in arrays.items()}
    return SimpleNamespace(**arrays)


def sequence(tokens, blocks, computed=0, **options) -> Sequence:
    """A sequence whose blocks are these, by taking all others out of the pool first."""
    pool = BlockPool(8, 16, **options)
    pool.release([block for block in reversed(pool.allocate(8)) if block not in blocks])
    result = Sequence(pool, tokens)
    result.blocks.extend(blocks)
    result.computed = computed
    return result


def in_use(inputs, shape: StepShape) -> dict[str, list]:
    lengths = [shape.n_tokens] * 4 + [shape.n_seqs + 1, shape.n_seqs, shape.n_seqs]
    lengths.append(shape.n_logit_rows)
    return {
        name: np.asarray(getattr(inputs, name))[:length].tolist()
        for name, length in zip(SHAPES, lengths)
    }


def test_a_prompt_a_chunk_and_a_decode_step(inputs):
    prompt = sequence([11, 12, 13], [5])
    chunk = sequence(range(50, 90), [7, 0, 3], computed=14)
    decode = sequence(range(33), [2, 6, 4], computed=32)
    rows = [(prompt, 0, 3, "last"), (chunk, 14, 20, "none"), (decode, 32, 1, "last")]
    shape = fill(StepArrays(inputs), rows, LIMITS)
    assert shape == (24, 3, 2)
    assert in_use(inputs, shape) == {
        "token_ids": [11, 12, 13, *range(64, 84), 32],
        "positions": [0, 1, 2, *range(14, 34), 32],
        "rope_lengths": [-1] * 24,  # as they were: no frequency follows the length
        # block 5; then block 7 offsets 14, 15, block 0 all of it, block 3 offsets 0, 1; block 4.
        "slots": [80, 81, 82, 126, 127, *range(16), 48, 49, 64],
        "seq_start": [0, 3, 23, 24],
        "context_len": [3, 34, 33],
        "block_table": [[5, -1, -1], [7, 0, 3], [2, 6, 4]],
        "logit_rows": [2, 23],
    }


def test_all_rows_of_a_chunk_and_blocks_reserved_ahead(inputs):
    scored = sequence([1, 2, 3, 4, 5], [6, 1], computed=1)
    other = sequence([9], [2])
    shape = fill(StepArrays(inputs), [(other, 0, 1, "none"), (scored, 1, 4, "all")], LIMITS)
    used = in_use(inputs, shape)
    assert shape == (5, 2, 4)
    assert used["logit_rows"] == [1, 2, 3, 4]
    assert used["slots"] == [32, 97, 98, 99, 100]
    assert used["block_table"] == [[2, -1, -1], [6, -1, -1]]


def test_lengths_that_tokens_are_rotated_by(inputs):
    bounds = {"rope_length_range": (8, 30)}
    prompt = sequence([11, 12, 13], [5], **bounds)  # shorter than the first length that counts
    chunk = sequence(range(50, 75), [7, 0], computed=14, **bounds)
    decode = sequence(range(28), [2, 6], computed=27, **bounds)
    decode.truncate(27)
    decode.append(9)  # at position 27: the sequence is 28 long
    rows = [(prompt, 0, 3, "last"), (chunk, 14, 11, "last"), (decode, 27, 1, "last")]
    assert fill(StepArrays(inputs), rows, LIMITS) == (15, 3, 3)
    assert np.asarray(inputs.rope_lengths).tolist() == [8] * 3 + [25] * 11 + [28] + [-1] * 9
    assert np.asarray(inputs.positions)[:15].tolist() == [0, 1, 2, *range(14, 25), 27]


def test_no_rows(inputs):
    assert fill(StepArrays(inputs), [], LIMITS) == (0, 0, 0)
    assert inputs.seq_start[0] == 0


@pytest.mark.parametrize("bad", [100, -1, 2**31, 2**70])
@pytest.mark.parametrize("length", [1, 3])
def test_an_id_outside_the_vocabulary_is_named(inputs, bad, length):
    tokens = [7] * 3 + [bad]
    row = (sequence(tokens, [0], computed=4 - length), 4 - length, length, "last")
    with pytest.raises(RequestError) as error:
        fill(StepArrays(inputs), [row], LIMITS)
    for part in (f"token id {bad} at position 3", "0 to 99", "vocabulary of 100"):
        assert part in str(error.value)


def test_ids_at_the_ends_of_the_vocabulary_are_fine():
    check_ids([0, 99], 100)
    check_ids([], 100)
    with pytest.raises(RequestError, match="token id 100 at position 6"):
        check_ids([0, 100], 100, start=5)


@pytest.mark.parametrize("length", [1, 2])
def test_positions_end_at_the_context_limit(inputs, length):
    tokens = range(42)
    good = (sequence(tokens, [0, 1, 2], computed=40 - length), 40 - length, length, "last")
    assert fill(StepArrays(inputs), [good], LIMITS) == (length, 1, 1)
    assert inputs.positions[length - 1] == 39
    bad = (sequence(tokens, [0, 1, 2], computed=41 - length), 41 - length, length, "last")
    with pytest.raises(RequestError, match="41 tokens .* limit of 40 positions"):
        fill(StepArrays(inputs), [bad], LIMITS)


def test_more_than_the_arrays_hold(inputs):
    def rows(*lengths, wants="none"):
        return [(sequence(range(30), [0, 1]), 0, length, wants) for length in lengths]

    assert fill(StepArrays(inputs), rows(23, 1), LIMITS) == (24, 2, 0)
    with pytest.raises(CapacityError, match="step of 25 tokens .at most 24, Limits.max_tokens"):
        fill(StepArrays(inputs), rows(23, 2), LIMITS)
    with pytest.raises(CapacityError, match="4 sequences .at most 3, Limits.max_seqs"):
        fill(StepArrays(inputs), rows(1, 1, 1, 1), LIMITS)
    assert fill(StepArrays(inputs), rows(7, 1, wants="all"), LIMITS) == (8, 2, 8)
    with pytest.raises(CapacityError, match="9 rows of logits .at most 8"):
        fill(StepArrays(inputs), rows(7, 2, wants="all"), LIMITS)


def test_our_own_invariants_are_asserted(inputs):
    shared = sequence(range(16), [0], computed=4)
    shared.pool.share([0])
    published = sequence(range(16), [0], computed=15)
    published.pool.publish(None, list(range(16)), 0)
    unreserved = sequence(range(20), [0], computed=10)
    twice = sequence(range(4), [0])
    foreign = Sequence(BlockPool(9, 16), [1])
    foreign.reserve(1)
    for rows in [
        [(shared, 4, 2, "last")],
        [(published, 15, 1, "last")],
        [(unreserved, 10, 7, "last")],
        [(twice, 0, 1, "none"), (twice, 0, 1, "none")],
        [(foreign, 0, 1, "last")],
        [(twice, 1, 1, "last")],  # skips a position
        [(twice, 0, 5, "last")],  # more than there are tokens
        [(twice, 0, 0, "last")],
    ]:
        with pytest.raises(AssertionError):
            fill(StepArrays(inputs), rows, LIMITS)
