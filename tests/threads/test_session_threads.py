"""Two threads on one Session: an error for the second, and no harm. Two Sessions: no matter."""

from __future__ import annotations

import threading

import pytest
from api.runs import alone, continuation, long_prompt
from threads.together import run_together

from kestrel.errors import SessionBusyError


def test_two_threads_on_one_session(model):
    """S39: each decodes 100 times; what was refused left no trace."""
    session = model.session()
    session.prefill([1, 2, 3])

    def decode() -> tuple[int, int]:
        done = refused = 0
        for token in range(100):
            try:
                session.decode(token)
                done += 1
            except SessionBusyError:
                refused += 1
        return done, refused

    results = run_together([decode, decode])
    assert sum(map(sum, results)) == 200
    assert len(session) == 3 + sum(done for done, _ in results)
    # What is in the cache belongs to the tokens that are listed, in their order.
    tokens = session.tokens
    rows = [session.decode(token).tobytes() for token in continuation(2)]
    assert rows == alone(model, tokens + continuation(1), new=1)[:1] + [
        alone(model, tokens + continuation(2), new=0)[0]
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.decode(1),
        lambda session: session.prefill([1, 2]),
        lambda session: session.truncate(0),
        lambda session: session.reset(),
        lambda session: session.fork(),
    ],
    ids=["decode", "prefill", "truncate", "reset", "fork"],
)
def test_every_method_is_refused_while_another_thread_is_inside(model, call):
    session = model.session()
    with model.runner.turn:  # so the thread stays inside its prefill, waiting for its turn
        thread = threading.Thread(target=session.prefill, args=([5, 6, 7],))
        thread.start()
        while not session._busy.locked():
            pass
        with pytest.raises(SessionBusyError, match="a session of its own"):
            call(session)
    thread.join()
    assert session.tokens == [5, 6, 7]


def test_sessions_on_one_model_give_the_bits_of_one_alone(model):
    """S39: eight sessions at once, some with prefixes in common."""
    prompts = [long_prompt(model, 20 + 7 * (n % 4))[n // 4 :] for n in range(8)]
    expected = [alone(model, ids) for ids in prompts]
    found = run_together([lambda ids=ids: alone(model, ids, chunk=5) for ids in prompts])
    assert found == expected


def test_forks_part_in_threads(model):
    ids = long_prompt(model, 40)
    parent = model.session()
    parent.prefill(ids)
    expected = [alone(model, [*ids, n, n + 1], new=0) for n in range(6)]

    def branch(session, n: int) -> list[bytes]:
        session.decode(n)
        return [session.decode(n + 1).tobytes()]

    children = [parent.fork() for _ in range(6)]
    tasks = [lambda s=s, n=n: branch(s, n) for n, s in enumerate(children)]
    assert run_together(tasks) == expected
    assert parent.tokens == ids
