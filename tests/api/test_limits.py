"""Limits: what does not fit is refused with its numbers, and the model goes on."""

from __future__ import annotations

import sys

import pytest
from api.runs import GREEDY, alone, long_prompt
from processes import run_python

import kestrel
from kestrel import Limits, SamplingParams
from kestrel.engine.request import Finished
from kestrel.errors import CapacityError, RequestError

#: One block of the demo model: 6 layers, keys and values, 4 heads of 32, 16 positions, float32.
BLOCK_BYTES = 6 * 2 * 4 * 32 * 16 * 4


@pytest.fixture
def four_blocks():
    """A cache of 64 positions, of which one sequence may take all."""
    limits = Limits(max_context=64, cache_bytes=4 * BLOCK_BYTES)
    with kestrel.load(threads=1, limits=limits) as model:
        assert (model.pool.num_blocks, model.context_limit, model.notes) == (4, 64, [])
        yield model


@pytest.mark.parametrize(
    "options, parts",
    [
        ({"max_tokens": 8}, ["max_seqs", "at most max_tokens (8)", "found 16"]),
        ({"max_tokens": 0}, ["max_tokens", "0"]),
        ({"max_tokens": "512"}, ["max_tokens", "'512'"]),
        ({"max_seqs": 2.0}, ["max_seqs", "2.0"]),
        ({"max_context": -5}, ["max_context", "-5"]),
        ({"cache_bytes": True}, ["cache_bytes", "True"]),
        ({"max_logit_rows": 600}, ["max_logit_rows", "512", "600"]),
    ],
)
def test_limits_that_cannot_be(options, parts):
    with pytest.raises(RequestError) as refusal:
        Limits(**options)
    for part in parts:
        assert part in str(refusal.value)


def test_the_smallest_limits(loaded):
    limits = Limits(max_tokens=1, max_seqs=1, max_context=40)
    ids = long_prompt(loaded, 30)
    with kestrel.load(threads=1, limits=limits) as model:
        assert alone(model, ids) == alone(loaded, ids)
        assert model.generate(ids[:20], GREEDY).ids == loaded.generate(ids[:20], GREEDY).ids


def test_fewer_logit_rows_than_sequences(loaded):
    prompts = [long_prompt(loaded, 10 + n) for n in range(5)]
    expected = [answer.ids for answer in loaded.generate(prompts, GREEDY)]
    with kestrel.load(threads=1, limits=Limits(max_seqs=8, max_logit_rows=2)) as model:
        assert [answer.ids for answer in model.generate(prompts, GREEDY)] == expected


def test_a_cache_smaller_than_the_context_lowers_the_limit():
    with kestrel.load(threads=1, limits=Limits(cache_bytes=3 * BLOCK_BYTES + 7)) as model:
        assert model.context_limit == 48
        (note,) = model.notes
        assert "context limit 48" in note and "1024" in note and "cache_bytes" in note
        with pytest.raises(RequestError, match="48"):
            model.generate(long_prompt(model, 48), GREEDY)
        answer = model.generate(
            long_prompt(model, 40), SamplingParams(temperature=0.0, ignore_eos=True)
        )
        assert len(answer.ids) == 8 and answer.reason == "length"


def test_a_session_finds_the_cache_full(four_blocks):
    first, second = four_blocks.session(), four_blocks.session()
    ids = long_prompt(four_blocks, 33)
    expected = first.prefill(ids).tobytes()
    with pytest.raises(CapacityError) as refusal:
        second.prefill(ids[1:])
    message = str(refusal.value)
    assert "2 more blocks of 16" in message and "1 of 4 available" in message
    assert "Limits.cache_bytes" in message
    assert second.tokens == []
    first.reset()
    assert second.prefill(ids).tobytes() == expected


def test_a_session_grows_until_the_cache_is_full(four_blocks):
    first, second = four_blocks.session(), four_blocks.session()
    first.prefill(long_prompt(four_blocks, 33))
    second.prefill([1])
    for token in range(15):
        second.decode(token)
    with pytest.raises(CapacityError):
        second.decode(15)
    assert len(second) == 16
    first.truncate(32)
    second.decode(15)


def test_generate_finds_the_cache_full(four_blocks):
    """Sessions hold all blocks: an error that says so, then it works."""
    session = four_blocks.session()
    session.prefill(long_prompt(four_blocks, 60))
    with pytest.raises(CapacityError, match="4 of 4 blocks"):
        four_blocks.generate([1, 2, 3], GREEDY)
    with pytest.raises(CapacityError, match="4 of 4 blocks"):
        list(four_blocks.stream([1, 2, 3], GREEDY))
    session.reset()
    assert len(four_blocks.generate([1, 2, 3], GREEDY).ids) == 12


def test_an_answer_that_fills_the_cache_says_why_it_ended(four_blocks):
    session = four_blocks.session()
    session.prefill(long_prompt(four_blocks, 30))
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    answer = four_blocks.generate([1, 2, 3], params)
    # 32 positions are left, and the last token is given out without being fed back.
    assert len(answer.ids) == 30 and answer.reason == "length"
    assert "KV cache is full" in answer.note and "cache_bytes" in answer.note


def test_many_requests_through_a_small_cache(four_blocks, loaded):
    """They take turns; each answer is what it would be alone."""
    prompts = [long_prompt(loaded, 17 + n)[n:] for n in range(6)]
    expected = [loaded.generate(ids, GREEDY).ids for ids in prompts]
    assert [answer.ids for answer in four_blocks.generate(prompts, GREEDY)] == expected
    four_blocks.pool.check(owners=[])


def test_a_step_that_is_interrupted_leaves_the_engine_whole(four_blocks):
    """An exception between plan and commit: nothing of the step counts, and the next one is it."""
    expected = four_blocks.generate("Once", GREEDY).ids
    engine = four_blocks.engine()
    engine.add(four_blocks.encode("Once"), GREEDY)
    found = []
    while engine.has_work:
        executable = four_blocks.runner.executable
        four_blocks.runner.executable = Broken(executable)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        four_blocks.runner.executable = executable
        found += [event.id for event in engine.step() if not isinstance(event, Finished)]
    assert found == expected


class Broken:
    """An executable interrupted between announcing a step and waiting for it."""

    def __init__(self, executable):
        self.inputs, self.submit = executable.inputs, executable.submit
        self.cancel = executable.cancel

    def wait(self):
        raise KeyboardInterrupt


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        # 16,640 positions: 16 contexts of 1024, and a block more for each sequence.
        ("", f"KV cache: the system does not give {1040 * BLOCK_BYTES:,} bytes for 16,640 pos"),
        ("max_context=64, max_tokens=65536", "a step of 65536 tokens: the system does not give"),
    ],
)
def test_memory_that_the_system_refuses_is_told_by_its_purpose(limits, told):
    result = run_python(f"""
        import resource
        import kestrel

        kestrel.load(threads=1).close()  # what is imported and mapped once is there now
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        most = used + 64 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            kestrel.load(threads=1, limits=kestrel.Limits({limits}))
        except kestrel.errors.CapacityError as error:
            print(error)
    """)
    assert result.stdout.startswith(told)
    assert "--max-context N" in result.stdout and "Limits.max_context" in result.stdout
