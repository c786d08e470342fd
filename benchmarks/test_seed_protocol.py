"""The seed protocol: 16 prompt tokens, 32 generated greedily, two warm-ups, five measured runs.

Through `Model.stream`, as users get it: scheduling, sampling and text included.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from figures import digest
from models import prompt, step_flops

from kestrel.engine.request import Finished
from kestrel.sampling.params import SamplingParams

PROMPT, GENERATED, WARM_UPS, RUNS = 16, 32, 2, 5
PARAMS = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)


@dataclass(frozen=True)
class Run:
    """Seconds until the first token, from there until the last, and the ids."""

    first_token: float
    decode: float
    ids: list[int]


def generate(model, ids: list[int]) -> Run:
    times, tokens = [], []
    started = time.perf_counter()
    for event in model.stream(ids, PARAMS):
        times.append(time.perf_counter())
        if isinstance(event, Finished):
            assert event.usage.cached_tokens == 0
        else:
            tokens.append(event.id)
    return Run(times[0] - started, times[GENERATED - 1] - times[0], tokens)


def step_by_step(session, ids: list[int]) -> tuple[list[int], str]:
    """The same greedy answer by way of a session, and a checksum of all its logits."""
    logits, tokens, seen = session.prefill(ids), [], []
    for _ in range(GENERATED):
        tokens.append(int(logits.argmax()))
        seen.append(logits)
        logits = session.decode(tokens[-1])
    return tokens, digest(seen)


@pytest.mark.parametrize(
    "name, dtype", [("tales-15m", "BF16"), ("15M", "F32"), ("15M", "BF16")]
)
def test_seed_protocol(measure, open_model, work, name, dtype):
    model, alone = open_model(name, dtype), open_model(name, dtype, threads=1)
    config = model.config
    common = prompt(PROMPT - 1, config.vocab_size)
    answer, checksum = step_by_step(alone.session(), [0, *common])
    first = iter(range(config.vocab_size))  # each run its own: nothing is found in the cache
    runs: list[Run] = []

    def result() -> str:
        # The first warm-up had the prompt that the other model answered, on one thread.
        assert runs[0].ids == answer
        return checksum

    measure(
        lambda: runs.append(generate(model, [next(first), *common])),
        result=result,
        count=GENERATED,
        unit="tokens/s",
        rounds=RUNS,
        budget=60.0,  # so that there are two warm-ups on any machine
        note="whole answer",
    )
    weights = model.program.weight_bytes()
    first_token, decode = zip(*((run.first_token, run.decode) for run in runs[WARM_UPS:]))
    prefill = work(nbytes=weights, flops=step_flops(config, PROMPT))
    measure.also("first token", first_token, result=checksum, count=1, unit="ms", work=prefill)
    measure.also(
        "prefill", first_token, result=checksum, count=PROMPT, unit="tokens/s", work=prefill
    )
    steps = GENERATED - 1  # the first token comes from the prefill
    measure.also(
        "decode",
        decode,
        result=checksum,
        count=steps,
        unit="tokens/s",
        work=work(
            nbytes=weights * steps,
            flops=step_flops(config, steps, PROMPT, logit_rows=steps),
            footprint=weights,
        ),
    )
