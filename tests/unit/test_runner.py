"""Runner: steps over real executables, whatever they and their callers do wrong."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.cache.sequence import Sequence
from kestrel.engine.runner import Runner
from kestrel.errors import (
    BackendError,
    CapacityError,
    NumericalError,
    RequestError,
    SessionBusyError,
)

LIMITS = kestrel.Limits(max_tokens=8, max_seqs=3, max_logit_rows=2, max_context=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("runner"))


@pytest.fixture(params=["cpu", "reference", "null"])
def model(request, folder):
    with kestrel.load(folder, backend=request.param, limits=LIMITS) as model:
        yield model


@pytest.fixture
def runner(model):
    return model.runner


def sequence(model, ids: list[int]) -> Sequence:
    result = Sequence(model.pool, ids)
    result.reserve(len(ids))
    return result


def test_limits_are_those_of_the_program(runner):
    assert (runner.max_tokens, runner.max_seqs, runner.max_logit_rows) == (8, 3, 2)
    assert runner.max_context == 40 and runner.step_count == 0


def test_a_step(model, runner):
    a, b = sequence(model, [1, 2, 3]), sequence(model, [4, 5])
    with runner.turn:
        shape = runner.run([(a, 0, 3, "last"), (b, 0, 2, "last")])
        assert shape == (5, 2, 2) and runner.step_count == 1
        for row in (0, 1):
            logits = runner.logits(row)
            assert logits.shape == (64,) and logits.dtype == np.float32
            assert runner.greedy(row) == int(logits.argmax())


@pytest.mark.parametrize(
    "ids, wants, error, part",
    [
        ([[1] * 9], "last", CapacityError, "a step of 9 tokens (at most 8"),
        ([[1]] * 4, "none", CapacityError, "4 sequences (at most 3"),
        ([[1], [2], [3]], "last", CapacityError, "3 rows of logits (at most 2)"),
        ([[1, 64]], "last", RequestError, "token id 64 at position 1: expected 0 to 63"),
    ],
)
def test_what_does_not_fit_a_step(model, runner, ids, wants, error, part):
    sequences = [sequence(model, each) for each in ids]
    rows = [(each, 0, len(each.tokens), wants) for each in sequences]
    with runner.turn, pytest.raises(error) as refusal:
        runner.run(rows)
    assert part in str(refusal.value) and runner.step_count == 0
    with runner.turn:
        runner.run([(sequence(model, [1]), 0, 1, "last")])


def test_a_step_that_was_announced_by_somebody_else(model, runner):
    runner.executable.submit(1, 1, 1)
    with runner.turn, pytest.raises(SessionBusyError):
        runner.run([(sequence(model, [1]), 0, 1, "last")])
    with runner.turn:  # the failed run dropped it
        runner.run([(sequence(model, [1]), 0, 1, "last")])


def test_a_turn_waits_for_the_turn_before(model, runner):
    order = []

    def work() -> None:
        with runner.turn:
            order.append("thread")

    with runner.turn:
        thread = threading.Thread(target=work)
        thread.start()
        runner.run([(sequence(model, [1, 2]), 0, 2, "last")])
        order.append("main")
    thread.join()
    assert order == ["main", "thread"]


def test_closed(model, runner):
    model.close()
    with runner.turn, pytest.raises(BackendError, match="closed: load it again"):
        runner.run([(sequence(model, [1]), 0, 1, "last")])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_logits_that_are_not_finite(tmp_path, backend):
    def change(tensors):
        tensors["lm_head.weight"][5, 0] = np.nan

    with kestrel.load(write_tiny(tmp_path, change), backend=backend) as model:
        runner = model.runner
        with runner.turn:
            runner.run([(sequence(model, [1, 2]), 0, 2, "last")])
            for read in (runner.logits, runner.greedy):
                with pytest.raises(NumericalError, match="step 1, logit row 0.*KESTREL_EAGER=1"):
                    read(0)


@pytest.mark.parametrize("model", ["cpu"], indirect=True)
def test_two_programs_over_one_cache(model, runner):
    """What one program wrote, another reads: the scoring program finds a session's prefix."""
    program = runner.program
    other = Runner(program, model.backend.compile(program), model.pool, 40)
    ids = [3, 1, 4, 1, 5]
    a = sequence(model, ids)
    with runner.turn:
        runner.run([(a, 0, 5, "last")])
        expected = runner.logits(0).tobytes()
    b = sequence(model, ids)
    with runner.turn:
        runner.run([(b, 0, 4, "none")])
        b.advance(4)
    with other.turn:
        other.run([(b, 4, 1, "last")])
        found = np.array(other.logits(0))
    assert found.tobytes() == expected
