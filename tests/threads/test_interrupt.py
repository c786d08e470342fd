"""S46: Ctrl-C in the middle of a step, with real signals in processes of their own."""

from __future__ import annotations

import pytest
from processes import run_python

from kestrel import _ops

#: Instrumented kernels are many times slower, so a piece of work takes longer than it should.
IS_SANITIZED = "thread" in _ops.build_info()["options"]

#: Seconds from the signal to KeyboardInterrupt.
LATENCY = 10.0 if IS_SANITIZED else 0.3

PRELUDE = """
import os, signal, threading, time
import kestrel
from api.runs import GREEDY, alone, cold, long_prompt
"""


@pytest.mark.parametrize("max_tokens", [16, 1024])
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c_during_a_long_prefill(threads, max_tokens):
    """A prefill of some 20 s of work on the scalar kernels, as one step or as many.

    The time is the processor time of the main thread, which computes, so that other work on the
    machine does not count. A second Python thread counts meanwhile.
    """
    result = run_python(
        PRELUDE
        + f"""
limits = kestrel.Limits(max_tokens={max_tokens})
model = kestrel.load(threads={threads}, isa="scalar", limits=limits)
ids = long_prompt(model, 1000)
session, fork = model.session(), None
first = session.prefill(ids[:20]).tobytes()
expected = alone(model, ids[:30])

clock = time.pthread_getcpuclockid(threading.get_ident())
count, sent = 0, None

def count_and_interrupt():
    global count, sent
    while model.runner.turns.running is None:  # so that the signal falls into the prefill
        time.sleep(0.001)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        count += 1
    sent = time.clock_gettime(clock)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=count_and_interrupt).start()
try:
    session.prefill(ids[20:])
    print("the prefill ran to its end")
except KeyboardInterrupt:
    took = time.clock_gettime(clock) - sent
    print("interrupted", took, count)

assert session.tokens == ids[:20]
# Positions 16 to 19 lie in a block of their own, or in one that a later step filled and published:
# that one was given back, and the four are computed again.
assert model.pool.num_blocks - model.pool.available in (1, 2)
rows = [session.prefill(ids[20:30]).tobytes()]
assert rows[0] == expected[0]
assert alone(model, ids[:30]) == expected
cold(model)
assert alone(model, ids[:30]) == expected
assert len(model.generate("Once", GREEDY.replace(max_tokens=2)).ids) == 2
"""
    )
    outcome, took, count = result.stdout.split()
    assert outcome == "interrupted"
    assert float(took) < LATENCY
    assert int(count) > 10_000, "the other thread had no chance to count: the GIL was held"


@pytest.mark.parametrize("call", ["generate", "stream", "score", "trace"])
def test_ctrl_c_in_every_call(call):
    """Each gives all its blocks back and works the next time."""
    run_python(
        PRELUDE
        + f"""
model = kestrel.load(threads=2, isa="scalar")
ids = long_prompt(model, 900)
calls = {{
    "generate": lambda ids: model.generate([ids, ids[5:]], GREEDY)[0].ids,
    "stream": lambda ids: [type(event) for event in model.stream(ids, GREEDY)],
    "score": model.score,
    "trace": lambda ids: model.trace(ids, "model.norm")["model.norm"].tobytes(),
}}
call = calls[{call!r}]
expected = call(ids[:12])
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    call(ids)
    raise SystemExit("ran to its end")
except KeyboardInterrupt:
    pass
model.pool.check(owners=[])
assert call(ids[:12]) == expected
"""
    )


def test_a_handler_of_the_user_runs_in_the_middle_of_a_step():
    """Whatever it raises comes out; what raises nothing does not disturb."""
    run_python(
        PRELUDE
        + """
model = kestrel.load(threads=1, isa="scalar")
ids = long_prompt(model, 40)
expected = alone(model, ids)
cold(model)
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(model.runner.turns.running is not None))
signal.setitimer(signal.ITIMER_REAL, 0.1)
assert alone(model, ids) == expected
assert seen == [True], "it ran while the step was under way"

class Deadline(Exception):
    pass

def expire(*_):
    raise Deadline

signal.signal(signal.SIGALRM, expire)
session = model.session()
session.prefill(ids)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    session.prefill(long_prompt(model, 900))
    raise SystemExit("ran to its end")
except Deadline:
    assert session.tokens == ids
"""
    )


def test_a_session_that_is_interrupted_inside_itself_is_busy():
    """A handler that calls the session it interrupted gets the error of a second thread."""
    run_python(
        PRELUDE
        + """
model = kestrel.load(threads=1, isa="scalar")
session = model.session()
signal.signal(signal.SIGALRM, lambda *_: session.decode(1))
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    session.prefill(long_prompt(model, 900))
    raise SystemExit("ran to its end")
except kestrel.errors.SessionBusyError:
    assert session.tokens == []
"""
    )


def test_ctrl_c_again_and_again():
    """200 times, at any moment between two steps too: it may cost a block, but never a bit."""
    run_python(
        PRELUDE
        + """
import gc, random
model = kestrel.load(threads=1, limits=kestrel.Limits(max_context=128))
ids = long_prompt(model, 50)
expected = alone(model, ids)
answer = model.generate(ids, GREEDY).ids
random.seed(7)
interrupted = 0
session = model.session()
signal.signal(signal.SIGALRM, signal.default_int_handler)
while interrupted < 200:
    try:
        # Once more after a second: Python drops an interrupt that falls into a finalizer.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.02), 1.0)
        while True:
            session.reset()
            session.prefill(ids[:20])
            session.fork().decode(3)
            model.generate(ids, GREEDY)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        interrupted += 1
session.reset()
gc.collect()
assert alone(model, ids) == expected
assert model.generate(ids, GREEDY).ids == answer
cold(model)
assert alone(model, ids) == expected
assert model.pool.available > model.pool.num_blocks - 20
"""
    )
