"""Session: exact whatever the chunks, and whole again after every refusal."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from api.runs import alone, cold, continuation, long_prompt

from kestrel.errors import RequestError


def test_logits_are_a_float32_row_of_the_vocabulary(model):
    session = model.session()
    logits = session.prefill(model.encode("Once upon a time"))
    assert logits.shape == (model.config.vocab_size,) and logits.dtype == np.float32
    before = logits.tobytes()
    session.decode(5)
    assert logits.tobytes() == before, "logits handed out belong to the caller"


def test_the_first_step_of_the_readme(model, demo_model):
    from golden.model_readme import greedy_lists

    for entry in greedy_lists(demo_model):
        logits = model.session().prefill(entry["prompt_ids"])
        for token, value in entry["first_step_top5"]:
            # Printed with 5 digits after the point; the bar of the issue for the largest error.
            assert abs(float(logits[token]) - value) < 0.5e-5 + 3.7e-5
        best = sorted(range(len(logits)), key=lambda i: -logits[i])[:5]
        assert best == [token for token, _ in entry["first_step_top5"]]


@pytest.mark.parametrize("chunk", [1, 7, 8, 39, 40, 41])
def test_chunks_change_no_bit(model, chunk):
    """S36."""
    ids = long_prompt(model, 40)
    expected = alone(model, ids)
    cold(model)
    assert alone(model, ids, chunk=chunk) == expected


def test_token_by_token_is_prefill(model):
    ids = long_prompt(model, 37)
    expected = alone(model, ids, new=0)
    cold(model)
    session = model.session()
    for token in ids[:-1]:
        session.decode(token)
    assert session.decode(ids[-1]).tobytes() == expected[0]
    assert session.tokens == ids and len(session) == 37


def test_prefill_may_come_in_pieces(model):
    ids = long_prompt(model, 50)
    expected = alone(model, ids, new=0)[0]
    cold(model)
    session = model.session()
    session.prefill(ids[:17])
    session.prefill(iter(ids[17:18]))
    assert session.prefill(np.array(ids[18:])).tobytes() == expected


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 39])
def test_truncate_and_extend_again(model, length):
    ids = long_prompt(model, 40)
    other = list(reversed(ids))
    expected = alone(model, ids[:length] + other)
    cold(model)
    session = model.session()
    session.prefill(ids)
    session.truncate(length)
    rows = [session.prefill(other), *(session.decode(token) for token in continuation(4))]
    assert [row.tobytes() for row in rows] == expected


@pytest.mark.parametrize("length", [1, 16, 20])
def test_fork_goes_its_own_way(model, length):
    ids = long_prompt(model, length)
    left, right = [ids + [20 + i for i in range(20)], ids + [90 + i for i in range(20)]]
    expected = [alone(model, each, new=0)[0] for each in (left, right)]
    cold(model)
    parent = model.session()
    parent.prefill(ids)
    child = parent.fork()
    assert child.tokens == ids
    held = model.pool.num_blocks - model.pool.available
    assert held == -(-length // 16), "full blocks are shared, the last one is not copied yet"
    for i in range(20):
        a, b = parent.decode(20 + i), child.decode(90 + i)
    assert [a.tobytes(), b.tobytes()] == expected
    assert (parent.tokens, child.tokens) == (left, right)


def test_a_fork_outlives_its_parent(model):
    ids = long_prompt(model, 40)
    expected = alone(model, ids + [7], new=0)[0]
    parent = model.session()
    parent.prefill(ids)
    child = parent.fork()
    del parent
    assert child.decode(7).tobytes() == expected


def test_reset(model):
    session = model.session()
    first = session.prefill(long_prompt(model, 20)).tobytes()
    session.reset()
    assert len(session) == 0 and session.tokens == []
    assert model.pool.available == model.pool.num_blocks
    assert session.prefill(long_prompt(model, 20)).tobytes() == first


def test_blocks_come_back_with_the_garbage(model):
    session = model.session()
    session.prefill(long_prompt(model, 100))
    assert model.pool.num_blocks - model.pool.available == 7
    cycle = [session]
    cycle.append(cycle)
    del session, cycle
    gc.collect()
    assert model.pool.available == model.pool.num_blocks


def test_garbage_may_be_collected_while_the_pool_is_locked(model):
    """The collector runs finalizers on whatever thread it likes, in the middle of anything."""
    cycle = [model.session()]
    cycle[0].prefill(long_prompt(model, 20))
    cycle.append(cycle)
    del cycle
    with model.pool._lock:
        gc.collect()
    assert model.pool.available == model.pool.num_blocks


@pytest.mark.parametrize("id_", [-1, 4096, 2**40])
def test_ids_outside_the_vocabulary(model, id_):
    session = model.session()
    session.prefill([1, 2, 3])
    with pytest.raises(RequestError, match=rf"token id {id_} at position 4: expected 0 to 4095"):
        session.prefill([4, id_])
    assert session.tokens == [1, 2, 3]


@pytest.mark.parametrize("ids", ["text", [1.0], [None], ["1"], 5, None, [[1]]])
def test_ids_of_another_type(model, ids):
    with pytest.raises(RequestError, match="expected integers, found"):
        model.session().prefill(ids)


def test_no_ids(model):
    with pytest.raises(RequestError, match="at least one"):
        model.session().prefill([])


@pytest.mark.parametrize("chunk", [0, -1, 1.5, "7"])
def test_chunk_of_another_kind(model, chunk):
    with pytest.raises(RequestError, match="chunk: expected an integer of at least 1"):
        model.session().prefill([1], chunk=chunk)


@pytest.mark.parametrize("length", [-1, 4, 1.0, None])
def test_truncate_outside_the_session(model, length):
    session = model.session()
    session.prefill([1, 2, 3])
    with pytest.raises(RequestError, match="from 0 to 3, found"):
        session.truncate(length)
    assert len(session) == 3


def test_the_context_limit(model):
    """S35: both numbers, and nothing is cut."""
    limit = model.context_limit
    assert limit == 1024
    ids = long_prompt(model, limit + 1)
    session = model.session()
    with pytest.raises(RequestError) as refusal:
        session.prefill(ids)
    assert "1025" in str(refusal.value) and "1024" in str(refusal.value)
    assert session.tokens == []
    session.prefill(ids[:-1])
    with pytest.raises(RequestError, match="1 token after the 1024"):
        session.decode(1)
    assert session.tokens == ids[:-1]
    session.truncate(1023)
    session.decode(1)


@pytest.mark.parametrize("dump", [pickle.dumps, copy.copy, copy.deepcopy])
def test_sessions_cannot_be_pickled(model, dump):
    with pytest.raises(TypeError, match=r"fork\(\) copies it"):
        dump(model.session())
