"""The same tokens give the same bits however they got into the cache, and on every processor."""

from __future__ import annotations

import hashlib

import pytest
from api.runs import GREEDY, alone, cold, continuation, long_prompt, preempted, together
from processes import run_python

import kestrel
from kestrel import Limits, SamplingParams, _ops

#: S32: one prompt of 200 tokens, seed 7, temperature 0.8.
SEEDED = SamplingParams(temperature=0.8, seed=7, max_tokens=12, ignore_eos=True, logprobs=3)


@pytest.fixture(scope="module")
def expected():
    """What every way of running must give: the best instruction set, one thread, whole, alone."""
    with kestrel.load(threads=1) as model:
        return alone(model, long_prompt(model, 40))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", _ops.isas())
def test_every_instruction_set_and_thread_count(expected, isa, threads):
    with kestrel.load(isa=isa, threads=threads) as model:
        assert alone(model, long_prompt(model, 40)) == expected


def test_another_process_with_another_hash_seed(expected):
    code = """
        import hashlib, kestrel
        from api.runs import alone, long_prompt
        model = kestrel.load(threads=1)
        print(hashlib.sha256(b"".join(alone(model, long_prompt(model, 40)))).hexdigest())
    """
    digest = hashlib.sha256(b"".join(expected)).hexdigest()
    assert run_python(code, PYTHONHASHSEED="11").stdout.split() == [digest]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_of_eight_of_other_lengths(threads):
    """S37: no padding, so each row is equal to its single run."""
    with kestrel.load(threads=threads) as model:
        text = long_prompt(model, 70)
        prompts = [text[start : start + length] for start, length in zip(
            range(8), (3, 30, 1, 16, 17, 64, 2, 40)
        )]  # fmt: skip
        found = together(model, prompts)
        for ids, rows in zip(prompts, found):
            cold(model)
            assert alone(model, ids) == rows


def test_a_warm_prefix(model):
    """Blocks found in the cache, whole prompt or part of it, cut at every place around a block."""
    ids = long_prompt(model, 64)
    for length in (15, 16, 17, 31, 32, 33, 48, 63, 64):
        cold(model)
        expected = alone(model, ids[:length])
        assert alone(model, ids[:length]) == expected
        cold(model)
        alone(model, ids[:32])
        assert alone(model, ids[:length]) == expected


def test_seeded_answers_do_not_depend_on_company():
    """S32: alone, a second time, with seven others, with steps of 16 and 64 tokens."""
    answers = []
    for limits in (None, Limits(max_tokens=16), Limits(max_tokens=64)):
        with kestrel.load(threads=1, limits=limits) as model:
            ids = long_prompt(model, 200)
            others = [ids[n:] + ids[: 9 * n] for n in range(1, 8)]
            answers.append(model.generate(ids, SEEDED))
            answers.append(model.generate(ids, SEEDED))
            answers.append(model.generate([*others[:4], ids, *others[4:]], SEEDED)[4])
            cold(model)
            answers.append(model.generate([ids, *others], SEEDED)[0])
    first = answers[0]
    assert first.seed == 7 and len(first.ids) == 12
    for answer in answers:
        assert (answer.ids, answer.text) == (first.ids, first.text)
        assert (answer.logprobs, answer.top_logprobs) == (first.logprobs, first.top_logprobs)
    assert answers[1].usage.cached_tokens == 192, "the second run found its prefix in the cache"


def test_preemption_changes_nothing():
    """A cache of 6 blocks for 4 requests that need 4 each."""
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=40, ignore_eos=True, logprobs=3)
    with kestrel.load(threads=1, limits=Limits(max_context=64)) as model:
        per_block = model.cache.nbytes // model.cache.num_blocks
        prompts = [long_prompt(model, 20 + n)[n:] for n in range(4)]
        expected = [model.generate(ids, params) for ids in prompts]
    with kestrel.load(
        threads=1, limits=Limits(max_context=64, cache_bytes=6 * per_block)
    ) as model:
        assert model.pool.num_blocks == 6
        found = preempted(model, prompts, params)
    for tokens, answer in zip(found, expected):
        assert [token.id for token in tokens] == answer.ids
        assert [token.logprob for token in tokens] == answer.logprobs
        assert "".join(token.text for token in tokens) == answer.text


def test_sessions_and_streams_interleaved(model):
    """Two streams and a session of one model, one step each in turn."""
    ids = long_prompt(model, 40)
    expected = alone(model, ids)
    answers = [model.generate(prompt, GREEDY) for prompt in ("The king said", ids)]
    cold(model)
    session = model.session()
    streams = [model.stream("The king said", GREEDY), model.stream(ids, GREEDY)]
    rows = [session.prefill(ids).tobytes()]
    found = [[], []]
    for turn in range(GREEDY.max_tokens):
        for events, stream in zip(found, streams):
            events.append(next(stream).id)
        if turn < 4:
            rows.append(session.decode(continuation(4)[turn]).tobytes())
    assert rows == expected
    assert found == [answer.ids for answer in answers]
    for stream in streams:
        assert [str(event.reason) for event in stream] == ["length"]
