"""How much of a decode step is Python: the null backend's time over the cpu backend's.

The null backend here repeats the tokens that the cpu backend found, so that scheduling, sampling,
text and bookkeeping do the same work on both sides. The share is a ratio of two times of one run,
which is why it may fail a build; in quick mode, on a machine that is not ours, it may not.
"""

from __future__ import annotations

import statistics
import time

import kestrel
import pytest
from figures import digest
from limits import QUICK
from models import prompt

from kestrel.backends.null import NullBackend, NullExecutable
from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.engine.request import Finished
from kestrel.sampling.params import SamplingParams

GATE = 0.05
PROMPT, STEPS = 16, 32 if QUICK else 128
PARAMS = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True)


class Echo(NullBackend):
    """Computes nothing; each step's greedy token comes from a list."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def compile(self, program) -> NullExecutable:
        executable, greedy, place = NullExecutable(program), None, 0
        greedy, plain_wait = executable.greedy, executable.wait

        def wait() -> None:
            nonlocal place
            plain_wait()
            greedy[0] = self.tokens[place]
            place = (place + 1) % STEPS

        executable.wait = wait
        return executable


def generate(model, ids: list[int]) -> tuple[list[float], list[int], str]:
    """Seconds of each step, the ids and the text of a greedy answer."""
    seconds, tokens, pieces = [], [], []
    stream = model.stream(ids, PARAMS)
    mark = time.perf_counter()
    for event in stream:
        now = time.perf_counter()
        if isinstance(event, Finished):
            break
        seconds.append(now - mark)
        mark = now
        tokens.append(event.id)
        pieces.append(event.text)
    return seconds[1:], tokens, "".join(pieces)  # the first step is the prefill


@pytest.mark.parametrize("name, dtype", [("tales-15m", "BF16"), ("15M", "BF16")])
def test_host_share(measure, checkpoint, open_model, name, dtype):
    model, echo = open_model(name, dtype), Echo()
    null = kestrel.model.Model(Checkpoint(checkpoint(name, dtype)), echo, None, "float32")
    ids = prompt(PROMPT, model.config.vocab_size)
    _, echo.tokens, text = generate(model, ids)
    device: list[float] = []
    host: list[float] = []
    answers: set[str] = set()

    def on_device() -> None:
        seconds, tokens, found = generate(model, ids)
        assert tokens == echo.tokens and found == text
        device.extend(seconds)

    def on_host() -> None:
        seconds, _, found = generate(null, ids)
        answers.add(found)
        host.extend(seconds)

    def result() -> str:
        assert answers == {text}, "the two sides did not do the same work"
        return digest([text])

    # By turns, so that a change of the machine's mood meets both.
    measure(
        on_host,
        setup=on_device,
        result=result,
        count=STEPS,
        unit="us",
        rounds=2 if QUICK else 20,
        note="a step of the null backend, start and end of the answer included",
    )
    share = statistics.median(host) / statistics.median(device)
    note = f"host share of a decode step: {share:.1%}, gate {GATE:.0%}"
    note += " (not asserted in quick mode)" * QUICK
    measure.also("null", host, result=digest([text]), count=1, unit="us")
    measure.also("cpu", device, result=digest([text]), count=1, unit="us", note=note)
    assert QUICK or share < GATE, note
