"""A signal handler that calls the model whose step it interrupted; processes of their own."""

from __future__ import annotations

import pytest
from processes import run_python

#: Seconds before a process counts as hanging; the work itself is far shorter.
LIMIT = 120

PRELUDE = """
import os, signal, threading
import kestrel
from kestrel.errors import BackendError, SessionBusyError
from api.runs import GREEDY, alone, long_prompt

model = kestrel.load(threads=2, isa="scalar", limits=kestrel.Limits(max_tokens=1024))
ids = long_prompt(model, 900)
session, other = model.session(), model.session()

def during_a_step(handler, call):
    signal.signal(signal.SIGTERM, lambda *_: handler())
    def send():
        while model.runner.turns.running is None:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        return call()
    finally:
        thread.join()
"""


@pytest.mark.parametrize(
    "handler",
    [
        "other.decode(5)",
        "model.generate('Once', max_tokens=2)",
        "model.score([5, 6, 7])",
        "model.trace([5, 6, 7], 'model.norm')",
    ],
)
def test_a_handler_cannot_compute_in_the_middle_of_a_step(handler):
    """The error is raised at once, travels out of the step, and leaves everything usable."""
    run_python(
        PRELUDE
        + f"""
expected = alone(model, ids[:12])
model.score([5, 6, 7])
try:
    during_a_step(lambda: {handler}, lambda: session.prefill(ids))
    raise SystemExit("ran to its end")
except SessionBusyError as error:
    assert "signal handler" in str(error), error
assert session.tokens == [] and other.tokens == []
model.pool.check(owners=[])
assert alone(model, ids[:12]) == expected
assert len(other.decode(5)) == model.config.vocab_size
""",
        timeout=LIMIT,
    )


@pytest.mark.parametrize(
    "call", ["session.prefill(ids)", "model.score(ids)", "model.generate(ids, GREEDY)"]
)
def test_a_handler_that_closes_the_model(call):
    """The step is cancelled, its call says why, and so does whatever is asked afterwards."""
    run_python(
        PRELUDE
        + f"""
try:
    during_a_step(model.close, lambda: {call})
    raise SystemExit("ran to its end")
except BackendError as error:
    assert "closed in the middle of this step" in str(error), error
assert session.tokens == []
for late in (lambda: other.decode(5), model.session, lambda: model.score(ids[:3])):
    try:
        late()
        raise SystemExit("a closed model computed")
    except BackendError as error:
        assert "closed" in str(error)
model.close()
""",
        timeout=LIMIT,
    )


def test_a_handler_that_raises_after_closing():
    """What the handler raises comes out, as without close()."""
    run_python(
        PRELUDE
        + """
def stop():
    model.close()
    raise KeyboardInterrupt

try:
    during_a_step(stop, lambda: session.prefill(ids))
    raise SystemExit("ran to its end")
except KeyboardInterrupt:
    pass
""",
        timeout=LIMIT,
    )


@pytest.mark.parametrize(
    "call", ["(other.reset(), other.decode(3))", "model.generate(ids[:20], GREEDY)"]
)
def test_a_handler_at_any_moment_computes_or_raises(call):
    """Also between two steps, where the interrupted line may change the cache: it never waits."""
    run_python(
        PRELUDE
        + f"""
import random, time
random.seed(5)
computed = refused = 0

def handler(*_):
    global computed, refused
    try:
        {call}
        computed += 1
    except SessionBusyError as error:
        assert "signal handler" in str(error), error
        refused += 1
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))

expected = model.session().prefill(ids[:17]).tobytes()
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 1e-3)
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        found = model.session().prefill(ids[:17]).tobytes()
    except SessionBusyError:
        continue
    assert found == expected
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert computed and refused, (computed, refused)
""",
        timeout=LIMIT,
    )
