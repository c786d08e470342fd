"""Everything a Model offers, from several threads at once: the results of one thread alone."""

from __future__ import annotations

import gc
import threading

import pytest
from api.runs import GREEDY, alone, long_prompt
from threads.together import run_together

import kestrel
from kestrel import Limits, SamplingParams
from kestrel.errors import BackendError, CapacityError

SEEDED = SamplingParams(temperature=0.8, seed=7, max_tokens=12, ignore_eos=True)


def test_generate_stream_score_and_trace_together(model):
    ids = long_prompt(model, 40)

    def stream() -> list[int]:
        return [event.id for event in model.stream(ids[3:], GREEDY) if hasattr(event, "id")]

    tasks = [
        lambda: model.generate("The king said", GREEDY).ids,
        lambda: [answer.ids for answer in model.generate([ids, ids[5:], "Once"], SEEDED)],
        stream,
        lambda: model.score(ids),
        lambda: model.trace(ids[:20], "lm_head")["lm_head"].tobytes(),
        lambda: alone(model, ids),
    ]
    expected = [task() for task in tasks]
    assert run_together(tasks) == expected
    assert run_together(tasks) == expected


def test_models_side_by_side(model):
    """Two models, each with its own threads: nothing is shared but the code."""
    ids = long_prompt(model, 30)
    expected = alone(model, ids)
    with kestrel.load(threads=2) as other, kestrel.load(threads=1) as third:
        found = run_together([lambda m=m: alone(m, ids) for m in (model, other, third)])
    assert found == [expected] * 3


def test_a_small_cache_under_many_threads():
    """Eight threads, room for five: some find the cache full, the others are right."""
    block_bytes = 98_304
    limits = Limits(max_context=64, max_seqs=4, cache_bytes=10 * block_bytes)
    with kestrel.load(threads=1, limits=limits) as model:
        prompts = [[n, *long_prompt(model, 20)] for n in range(8)]
        expected = [alone(model, ids) for ids in prompts]

        def run(n: int) -> bool:
            try:
                assert alone(model, prompts[n]) == expected[n]
            except CapacityError:
                return False
            return True

        done = [
            sum(run_together([lambda n=n: run(n) for n in range(8)])) for _ in range(5)
        ]  # fmt: skip
        assert min(done) >= 1
        gc.collect()
        model.pool.check(owners=[])


def test_a_step_computes_without_the_gil():
    """Another Python thread counts while a long prefill runs on the calling thread."""
    with kestrel.load(threads=1, isa="scalar") as model:
        ids, count, stop = long_prompt(model, 40), [0], threading.Event()

        def work() -> None:
            while not stop.is_set():
                count[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        before = count[0]
        model.session().prefill(ids)
        counted = count[0] - before
        stop.set()
        thread.join()
    # With the GIL held through the step it could count in the few gaps around it alone.
    assert counted > 10_000


def test_closing_while_others_compute():
    """They end with an answer or with the error that says why; nothing hangs or crashes."""
    model = kestrel.load(threads=2)
    running = threading.Barrier(4)

    def work() -> str:
        session = model.session()
        session.prefill([1, 2, 3])
        running.wait()
        try:
            for token in range(900):
                session.decode(token)
        except BackendError as error:
            return str(error)
        return "closed"

    def close() -> str:
        running.wait()
        model.close()
        return "closed"

    assert all("closed" in said for said in run_together([work, work, work, close]))
    with pytest.raises(BackendError, match="closed"):
        model.session()


def test_results_are_dropped_on_other_threads(model):
    """Sessions and streams made here and freed there: their blocks come back all the same."""
    things = []
    for n in range(6):
        session = model.session()
        session.prefill([n, 1, 2])
        stream = model.stream([n, 3, 4], SEEDED)
        next(stream)
        things.append([session, stream])
    del session, stream

    def drop(owned: list) -> None:
        owned.clear()

    run_together([lambda owned=owned: drop(owned) for owned in things])
