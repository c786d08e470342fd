"""Scheduler: plans worked out by hand, limits, ways to end."""

from __future__ import annotations

import dataclasses

import pytest

from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence
from kestrel.engine.request import FinishReason, Request, RequestState
from kestrel.engine.scheduler import Scheduler
from kestrel.errors import CapacityError, ConfigError, RequestError

VOCAB_SIZE = 1000


def scheduler(
    num_blocks=64, *, max_tokens=64, max_seqs=8, max_context=512, block_size=16, **options
) -> Scheduler:
    pool = BlockPool(num_blocks, block_size)
    return Scheduler(pool, max_tokens, max_seqs, max_context, VOCAB_SIZE, **options)


def planned(plan) -> list[tuple[int, int, int, str]]:
    return [(c.request.id, c.start, c.length, c.wants_logits) for c in plan.chunks]


def step(s: Scheduler, token: int = 1):
    """Plan, pretend to run, commit: every request that wants a token gets this one."""
    plan = s.plan()
    tokens = {c.request.id: token for c in plan.chunks if c.wants_logits == "last"}
    return planned(plan), s.commit(plan, tokens)


def run(s: Scheduler, token: int = 1) -> list:
    finished = []
    while s.has_work:
        finished += step(s, token)[1]
    return finished


def test_a_prompt_then_one_token_a_step():
    s = scheduler()
    s.add(Request([5, 6, 7], max_tokens=3))
    assert step(s) == ([(1, 0, 3, "last")], [])
    assert step(s) == ([(1, 3, 1, "last")], [])
    chunks, (finished,) = step(s)
    assert chunks == [(1, 4, 1, "last")]
    assert (finished.request_id, finished.reason, finished.note) == (1, FinishReason.LENGTH, "")
    assert finished.usage.prompt_tokens == 3 and finished.usage.completion_tokens == 3
    assert not s.has_work and s.pool.available == 64


def test_a_long_prompt_is_cut_into_chunks_behind_the_running_ones():
    s = scheduler(max_tokens=10)
    for length in (4, 15, 3):
        s.add(Request([1] * length))
    assert step(s)[0] == [(1, 0, 4, "last"), (2, 0, 6, "none")]
    assert step(s)[0] == [(1, 4, 1, "last"), (2, 6, 9, "last")]
    assert step(s)[0] == [(1, 5, 1, "last"), (2, 15, 1, "last"), (3, 0, 3, "last")]


@pytest.mark.parametrize("chunk", [1, 7, 8, 39, 40, 41])
def test_chunks_cover_the_prompt_once(chunk):
    s = scheduler(max_tokens=chunk, max_seqs=1)
    s.add(Request(list(range(40)), max_tokens=1))
    chunks = []
    while s.has_work:
        chunks += step(s)[0]
    starts = list(range(0, 40, chunk))
    assert [c[1] for c in chunks] == starts
    assert [c[2] for c in chunks] == [min(chunk, 40 - start) for start in starts]
    assert [c[3] for c in chunks] == ["none"] * (len(starts) - 1) + ["last"]


def test_no_more_than_max_seqs_run():
    s = scheduler(max_seqs=2)
    for _ in range(3):
        s.add(Request([1], max_tokens=2))
    assert [c[0] for c in step(s)[0]] == [1, 2]
    assert [c[0] for c in step(s)[0]] == [1, 2]
    assert [c[0] for c in step(s)[0]] == [3]


def test_a_known_prefix_is_not_computed_again():
    s = scheduler()
    s.add(Request(list(range(40)), max_tokens=1))
    run(s)
    s.add(Request(list(range(40)), max_tokens=1))
    s.add(Request(list(range(32)), max_tokens=1))
    chunks, finished = step(s)
    # Two full blocks are known; of the second prompt the last token's block must be computed.
    assert chunks == [(2, 32, 8, "last"), (3, 16, 16, "last")]
    assert [f.usage.cached_tokens for f in finished] == [32, 16]


def test_the_youngest_gives_its_blocks_back_and_keeps_its_tokens():
    s = scheduler(7)
    requests = [Request([i] * 15) for i in range(3)]
    for request in requests:
        s.add(request)
    for _ in range(18):  # computed: 15, then one more each step up to 32, two full blocks each
        assert [c[0] for c in step(s)[0]] == [1, 2, 3]
    assert s.pool.available == 1 and requests[0].sequence.computed == 32
    # The first takes the last block; for the second, the third must go.
    assert step(s)[0] == [(1, 32, 1, "last"), (2, 32, 1, "last")]
    young = requests[2]
    assert (young.state, young.preemptions, s.waiting[0]) == (RequestState.WAITING, 1, young)
    assert len(young.sequence.tokens) == 15 + 18 == 33 and young.completion_tokens == 18
    # With room again it computes its tokens again: of its blocks only the second was reused.
    s.cancel(1)
    chunks, finished = step(s)
    assert [f.request_id for f in finished] == [1]
    assert chunks == [(2, 33, 1, "last"), (3, 16, 17, "last")]


def test_a_newcomer_needs_room_for_the_next_block_of_the_others():
    s = scheduler(3, max_tokens=64)
    s.add(Request([1] * 16))
    s.add(Request([2] * 20))
    assert [c[0] for c in step(s)[0]] == [1]
    s = scheduler(4, max_tokens=64)
    s.add(Request([1] * 16))
    s.add(Request([2] * 20))
    assert [c[0] for c in step(s)[0]] == [1, 2]


def test_nobody_overtakes_the_head_of_the_queue():
    s = scheduler(4, max_tokens=64)
    for ids in ([1] * 20, [2] * 40, [3]):
        s.add(Request(ids, max_tokens=2))
    assert [c[0] for c in step(s)[0]] == [1]
    assert [c[0] for c in step(s)[0]] == [1]
    assert [c[0] for c in step(s)[0]] == [2]  # three blocks: one is kept back for it
    assert [c[0] for c in step(s)[0]] == [2]
    assert [c[0] for c in step(s)[0]] == [3]


def test_context_limit_ends_with_length():
    s = scheduler(max_context=64)
    request = Request([1] * 60, max_tokens=100)
    s.add(request)
    (finished,) = run(s)
    assert finished.reason == "length" and "context limit of 64" in finished.note
    assert finished.usage.completion_tokens == 4 and len(request.sequence.tokens) == 64


@pytest.mark.parametrize("length", [64, 65])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(length):
    s = scheduler(max_context=64)
    with pytest.raises(RequestError, match=f"{length} tokens and the context limit is 64"):
        s.add(Request([1] * length))
    s.add(Request([1] * 63))
    assert run(s)[0].usage.completion_tokens == 1


@pytest.mark.reference
def test_the_context_limit_counts_as_transformers_counts():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        vocab_size=16, max_position_embeddings=64, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        out = model.generate(torch.ones(1, 60, dtype=torch.long), max_length=64, do_sample=False)
        assert out.shape[1] == 64
        with pytest.raises(ValueError):
            model.generate(torch.ones(1, 64, dtype=torch.long), max_length=64)


def test_stop_ids_end_and_are_kept():
    s = scheduler()
    request = Request([1, 2], stop_ids=frozenset({7}))
    s.add(request)
    assert step(s, 6)[1] == []
    (finished,) = step(s, 7)[1]
    assert (finished.reason, request.sequence.tokens) == ("stop", [1, 2, 6, 7])
    assert f"{finished.reason}" == "stop"


@pytest.mark.parametrize(
    "request_, error, match",
    [
        (Request([]), RequestError, "no tokens"),
        (Request([1, VOCAB_SIZE]), RequestError, "token id 1000 at position 1.*vocabulary of 1000"),
        (Request([-1]), RequestError, "token id -1"),
        (Request([1.5]), RequestError, r"expected a list of token ids, integers, found .1.5."),
        (Request("text"), RequestError, "found 'text'"),
        (Request([1], max_tokens=0), RequestError, "max_tokens: expected at least 1, found 0"),
        (Request([1] * 64), CapacityError, "64 tokens and one more need 5 blocks.* has 4"),
    ],
)
def test_what_add_refuses(request_, error, match):
    s = scheduler(4)
    with pytest.raises(error, match=match):
        s.add(request_)
    assert not s.has_work


def test_limits_must_let_every_sequence_advance():
    for max_tokens, max_seqs in [(4, 5), (4, 0)]:
        with pytest.raises(ConfigError, match="max_seqs"):
            scheduler(max_tokens=max_tokens, max_seqs=max_seqs)


def test_a_request_that_fills_the_cache_alone_ends_with_length():
    s = scheduler(2)
    s.add(Request([1] * 10))
    (finished,) = run(s)
    # 32 positions are computed, and the last one's token is still given out.
    assert finished.reason == "length" and finished.usage.completion_tokens == 33 - 10
    assert "2 of 2 blocks" in finished.note and "Limits.cache_bytes" in finished.note
    assert s.pool.available == 2


def test_when_sessions_hold_the_cache_the_queue_still_moves():
    s = scheduler(4)
    session = Sequence(s.pool, [1] * 50)
    session.reserve(40)
    s.add(Request([1] * 20))
    s.add(Request([1] * 3, max_tokens=1))
    chunks, finished = step(s)
    assert chunks == [(2, 0, 3, "last")]
    assert [(f.request_id, f.reason) for f in finished] == [(1, "error"), (2, "length")]
    assert "full" in finished[0].note
    s.pool.check([session.blocks])


def test_cancel_and_finish():
    s = scheduler(max_seqs=2)
    for _ in range(3):
        s.add(Request([1] * 20))
    plan = s.plan()
    available = s.pool.available
    assert s.cancel(1) and s.cancel(3) and not s.cancel(4)
    assert s.pool.available == available, "blocks of a step on the device stay"
    finished = s.commit(plan, {1: 5, 2: 5})
    # The token of the step in which it was cancelled is dropped.
    assert [(f.request_id, f.reason) for f in finished] == [(3, "cancelled"), (1, "cancelled")]
    assert finished[1].usage.completion_tokens == 0
    assert s.pool.available == available + 2
    assert s.finish(2, FinishReason.STOP, "stop string")
    assert not s.cancel(2)
    assert s.has_work and s.pool.available == 64
    chunks, (last,) = step(s)
    assert (chunks, last.reason, last.note) == ([], "stop", "stop string")
    assert not s.has_work


def test_a_failed_step_is_planned_again():
    s = scheduler()
    s.add(Request([1] * 20))
    s.add(Request([2] * 20))
    first = s.plan()
    s.cancel(2)
    s.abort()
    assert s.pool.available == 62
    with pytest.raises(ValueError, match="latest plan"):
        s.commit(first, {1: 1, 2: 1})
    chunks, finished = step(s)
    assert chunks == [(1, 0, 20, "last")] and [f.request_id for f in finished] == [2]


def test_only_the_latest_plan_is_committed_once():
    s = scheduler()
    s.add(Request([1]))
    old, new = s.plan(), s.plan()
    with pytest.raises(ValueError):
        s.commit(old, {1: 1})
    s.commit(new, {1: 1})
    with pytest.raises(ValueError):
        s.commit(new, {1: 1})


def test_usage_tells_the_times_apart():
    times = iter([10.0, 11.0, 13.0, 17.0])  # added, first planned, first token, ended
    s = scheduler(max_tokens=8, clock=lambda: next(times))
    s.add(Request([1] * 20, max_tokens=3))
    (finished,) = run(s)
    usage = dataclasses.asdict(finished.usage)
    assert usage == {
        "prompt_tokens": 20,
        "cached_tokens": 0,
        "completion_tokens": 3,
        "queue_seconds": 1.0,
        "prefill_seconds": 2.0,
        "decode_seconds": 4.0,
    }
