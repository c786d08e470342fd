"""fork after load: parent and child both go on, whatever was under way."""

from __future__ import annotations

import os

import pytest
from processes import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

#: A child that starts threads is what is tested here: the sanitizer's default is to end it.
TSAN = {"TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS", "") + " die_after_fork=0"}

PRELUDE = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork while threads exist
import kestrel
from api.runs import GREEDY, alone, cold, long_prompt

def in_child(check):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return pid

def ended_well(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def run(code: str) -> None:
    run_python(PRELUDE + code, timeout=120, **TSAN)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("warm_up", [False, True])
def test_child_and_parent_give_the_right_tokens(threads, warm_up):
    run(f"""
with kestrel.load(threads=1) as other:
    ids = long_prompt(other, 30)
    expected, bits = other.generate(ids, GREEDY).ids, alone(other, ids)
model = kestrel.load(threads={threads})
if {warm_up}:
    session = model.session()
    session.prefill(ids)

def check():
    if {warm_up}:
        assert session.decode(5).tobytes() == bits[1]
    return model.generate(ids, GREEDY).ids == expected and alone(model, ids) == bits

child = in_child(check)
assert check()
assert ended_well(child)
grandchild = in_child(lambda: ended_well(in_child(lambda: alone(model, ids) == bits)))
assert ended_well(grandchild)
assert alone(model, ids) == bits
""")


def test_fork_while_another_thread_is_inside_a_step():
    """The step goes on in the parent; the child, which has not that thread, starts its own."""
    run("""
model = kestrel.load(threads=2, isa="scalar")
ids = long_prompt(model, 24)
expected = alone(model, ids, new=1)
cold(model)
found = []
thread = threading.Thread(target=lambda: found.append(alone(model, ids, new=1)))
thread.start()
while model.runner.turns.running is None:
    pass
time.sleep(0.02)  # into the step
inside = model.runner.turns.running is not None
child = in_child(lambda: alone(model, ids, new=1) == expected)
thread.join()
assert inside and found == [expected]
assert ended_well(child)
""")


def test_fork_while_threads_allocate_blocks():
    """No lock of the pool is left behind in a child."""
    run("""
model = kestrel.load(backend="null")
stop = threading.Event()

def work():
    session = model.session()
    while not stop.is_set():
        session.prefill(range(100))
        session.reset()

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
children = [in_child(lambda: len(model.generate("Once", GREEDY).ids) == 12) for _ in range(20)]
stop.set()
for thread in threads:
    thread.join()
assert all([ended_well(child) for child in children])
""")


def test_a_pool_of_processes():
    run("""
import multiprocessing

model = kestrel.load(threads=2)
prompts = ["Once upon a time", "The king said", "In the middle of the forest", "A castle"]
expected = [model.generate(prompt, GREEDY).ids for prompt in prompts]

def ids_of(prompt):
    return model.generate(prompt, GREEDY).ids

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(ids_of, prompts) == expected
""")
