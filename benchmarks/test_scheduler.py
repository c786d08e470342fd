"""Host work without a device: planning steps, and filling their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from figures import digest
from models import prompt

from kestrel.backends.base import StepInputs
from kestrel.cache.block_pool import BlockPool
from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.engine.request import Request
from kestrel.engine.scheduler import Scheduler
from kestrel.engine.step import StepArrays, StepLimits, fill

VOCAB = 32_000
CONTEXT = 1024
PROMPT = 16
STEPS = 50
REQUESTS = [1, 16, 256]


def decoding(requests: int) -> Scheduler:
    """A scheduler whose requests have all had their first token."""
    pool = BlockPool(requests * CONTEXT // BLOCK_SIZE, BLOCK_SIZE)
    scheduler = Scheduler(pool, requests * PROMPT, requests, CONTEXT, VOCAB)
    for number in range(requests):
        scheduler.add(Request(prompt(PROMPT, VOCAB, seed=number)))
    advance(scheduler, 1)
    return scheduler


def advance(scheduler: Scheduler, steps: int) -> list[tuple[int, int, int, str]]:
    """Plan and commit; returns what the last plan said."""
    for step in range(steps):
        plan = scheduler.plan()
        # Ids differ by request, so that no request finds another's blocks.
        tokens = {chunk.request.id: (chunk.request.id + step) % VOCAB for chunk in plan.chunks}
        assert not scheduler.commit(plan, tokens)
    return [(c.request.id, c.start, c.length, c.wants_logits) for c in plan.chunks]


@pytest.mark.parametrize("requests", REQUESTS)
def test_plans(measure, requests):
    def result() -> str:
        last = advance(decoding(requests), STEPS)
        at = PROMPT + STEPS - 1
        assert last == [(number + 1, at, 1, "last") for number in range(requests)]
        return digest([repr(last)])

    measure(
        lambda scheduler: advance(scheduler, STEPS),
        setup=lambda: ((decoding(requests),), {}),
        result=result,
        count=STEPS,
        unit="plans/s",
    )


@pytest.mark.parametrize("requests", REQUESTS)
def test_fills(measure, requests):
    scheduler = decoding(requests)
    rows = scheduler.plan().rows()
    blocks = scheduler.pool.num_blocks
    inputs = StepInputs(
        *(np.zeros(requests, np.int32) for _ in range(4)),
        seq_start=np.zeros(requests + 1, np.int32),
        context_len=np.zeros(requests, np.int32),
        block_table=np.zeros((requests, CONTEXT // BLOCK_SIZE), np.int32),
        logit_rows=np.zeros(requests, np.int32),
    )
    arrays, limits = StepArrays(inputs), StepLimits(VOCAB, CONTEXT, blocks * BLOCK_SIZE)

    def result() -> str:
        assert inputs.positions.tolist() == [PROMPT] * requests
        assert inputs.context_len.tolist() == [PROMPT + 1] * requests
        assert inputs.logit_rows.tolist() == list(range(requests))
        return digest([inputs.token_ids, inputs.slots, inputs.seq_start])

    measure(lambda: fill(arrays, rows, limits), result=result, count=1, unit="us")
