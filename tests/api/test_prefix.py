"""Prefixes found in the cache: who finds what, and that nobody finds another prompt's."""

from __future__ import annotations

import pytest
from api.runs import GREEDY, alone, cold, long_prompt

import kestrel
from kestrel import Limits


def held(model) -> int:
    return model.pool.num_blocks - model.pool.available


def test_a_session_finds_what_another_left(model):
    ids = long_prompt(model, 50)
    expected = alone(model, ids, new=0)
    steps = model.runner.step_count
    session = model.session()
    assert [session.prefill(ids, chunk=1).tobytes()] == expected
    # 48 of 50 positions lie in full blocks: two are left to compute.
    assert model.runner.step_count - steps == 2


def test_the_last_token_is_always_computed(model):
    ids = long_prompt(model, 32)
    expected = alone(model, ids, new=0)
    steps = model.runner.step_count
    session = model.session()
    assert [session.prefill(ids, chunk=1).tobytes()] == expected
    assert model.runner.step_count - steps == 16


def test_equal_prefixes_share_blocks_while_both_run(model):
    ids = long_prompt(model, 48)
    sessions = [model.session() for _ in range(3)]
    for session in sessions:
        session.prefill([*ids, 7, 8, 9])
    assert held(model) == 3 + 3, "three shared blocks, and a last one for each"


def test_blocks_computed_at_the_same_time_become_one(model):
    ids = long_prompt(model, 48)
    first, second = model.session(), model.session()
    for token in ids:
        first.decode(token)
        second.decode(token)
    assert held(model) == 3


@pytest.mark.parametrize("place", [0, 15, 16, 31])
def test_one_other_token_is_another_prefix(model, place):
    """The cache of one prompt is never handed to another, whatever they share after the change."""
    ids = long_prompt(model, 40)
    other = list(ids)
    other[place] += 1
    expected = alone(model, other)
    cold(model)
    alone(model, ids)
    assert alone(model, other) == expected


def test_generate_finds_what_a_session_left_and_the_other_way_round(model):
    ids = long_prompt(model, 40)
    answer = model.generate(ids, GREEDY)
    whole = ids + answer.ids
    steps = model.runner.step_count
    session = model.session()
    session.prefill(whole)
    assert model.runner.step_count == steps + 1
    assert model.generate(whole, GREEDY).usage.cached_tokens == 48


def test_what_score_and_trace_computed_is_found_too(model):
    ids = long_prompt(model, 40)
    expected = alone(model, ids)
    for work in (model.score, lambda ids: model.trace(ids, "model.norm")):
        cold(model)
        work(ids)
        assert model.pool.cached == 2
        assert alone(model, ids) == expected


def test_a_cached_prefix_makes_room_for_new_prompts(loaded):
    """What nobody holds any more never keeps anybody out: 6 prompts of 4 blocks, a cache of 8."""
    prompts = [[n, *long_prompt(loaded, 50)] for n in range(6)]
    limits = Limits(max_context=64, cache_bytes=8 * 98_304)
    with kestrel.load(threads=1, limits=limits) as model:
        for ids in prompts + prompts:
            assert alone(model, ids, new=0) == alone(loaded, ids, new=0)
        assert held(model) == 0 and 5 <= model.pool.cached <= 8


def test_chat_history_is_kept_in_the_cache(model):
    """Each turn of a chat repeats all that was said: only what is new is computed."""
    history, computed = model.encode("Once upon a time there was a king who had three sons."), 0
    for _ in range(4):
        answer = model.generate(history, GREEDY)
        assert answer.usage.cached_tokens == computed // 16 * 16
        computed = len(history) + len(answer.ids) - 1  # the last token was not fed back
        history = history + answer.ids + model.encode(" And then, said the king,")[1:]
