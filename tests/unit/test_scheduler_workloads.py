"""Scheduler: random workloads on a device of hashes, checked in every step.

What each request must generate is worked out without cache, batch or scheduler, so that prefix
sharing, chunked prompts, preemption, cancellation and failed steps must all leave no trace in it.
"""

from __future__ import annotations

import random

import pytest
from unit.paged_device import PagedDevice, key_value, key_values, next_token

from kestrel.cache.block_pool import BlockPool
from kestrel.engine.request import Request, RequestState
from kestrel.engine.scheduler import Scheduler
from kestrel.errors import CapacityError, RequestError


def alone(
    request: Request, vocab_size: int, max_context: int, capacity, bounds, window, restarts
):
    """What a request must generate, worked out without cache, batch or scheduler."""
    first, last = bounds or (0, 0)
    prompt_length = min(max(len(request.ids), first), last)
    tokens = list(request.ids)
    value = key_values(tokens, [prompt_length] * len(tokens), window)[-1]
    while True:
        tokens.append(next_token(value, vocab_size))
        if tokens[-1] in request.stop_ids:
            return tokens, "stop"
        if len(tokens) - len(request.ids) == request.max_tokens:
            return tokens, "length"
        if len(tokens) in (max_context, capacity + 1):
            return tokens, "length"
        length = min(max(len(tokens), first), last)
        if restarts:
            value = key_values(tokens, [length] * len(tokens), window)[-1]
            continue
        if window == 1:
            value = 0
        value = key_value(value, tokens[-1], len(tokens) - 1, length)


class Workload:
    """A seeded mix of requests, cancellations and failed steps, with the checks of each step."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.vocab_size = rng.choice([2, 5, 200])
        self.bounds = rng.choice([None, (4, 40), (16, 17)])  # of the lengths that count
        self.restarts = bool(self.bounds) and rng.random() < 0.5
        self.window = rng.choice([None, None, None, 1, 7, 20, 20, 20])
        blocks, size = rng.randint(2, 14), rng.choice([2, 4, 8])
        self.pool = BlockPool(
            blocks, size, window=self.window, rope_length_range=self.bounds, restarts=self.restarts
        )
        self.capacity = blocks * size
        # A token sees window - 1 positions before it, and needs a block for its own.
        self.is_endless = bool(self.window) and max(-(-(self.window - 1) // size), 1) < blocks
        if self.is_endless:
            self.capacity = 10**6
        max_seqs = rng.randint(1, 5)
        limits = {
            "max_tokens": rng.randint(max_seqs, 24),
            "max_seqs": max_seqs,
            "max_context": rng.randint(4, min(self.capacity + 8, 120)),
            "vocab_size": self.vocab_size,
        }
        self.max_context = limits["max_context"]
        self.scheduler = Scheduler(self.pool, **limits)
        self.device = PagedDevice(self.pool, **limits)
        self.requests: dict[int, Request] = {}
        self.finished: dict[int, str] = {}
        self.cancelled: set[int] = set()
        self.started: list[int] = []
        self.aborts = self.freed = self.shrunk = self.restarted = 0
        self.stems = [rng.choices(range(self.vocab_size), k=30) for _ in range(2)]

    def add(self) -> None:
        rng = self.rng
        ids = rng.choice(self.stems)[: rng.choice([0, 3, 8, 30])]
        ids = ids + rng.choices(range(self.vocab_size), k=rng.randint(0, 6))
        request = Request(
            ids,
            max_tokens=rng.choice([None, 1, 5, 40]),
            stop_ids=frozenset({rng.randrange(self.vocab_size)} if rng.random() < 0.3 else ()),
        )
        size = self.pool.block_size
        try:
            self.requests[self.scheduler.add(request)] = request
        except RequestError:
            assert not 0 < len(ids) < self.max_context
        except CapacityError:
            assert -(-(len(ids) + 1) // size) > self.pool.num_blocks and not self.is_endless

    def cancel(self) -> None:
        alive = [i for i in self.requests if i not in self.finished and i not in self.cancelled]
        if alive and self.rng.random() < 0.02:
            request_id = self.rng.choice(alive)
            if self.scheduler.cancel(request_id):
                self.cancelled.add(request_id)
            else:  # ended by the latest plan, not yet told
                assert self.requests[request_id].state is RequestState.FINISHED

    def step(self) -> None:
        s = self.scheduler
        plan = s.plan()
        assert plan.chunks or s._finished, "no progress"
        assert not plan.chunks or plan.chunks[0].request is s.running[0], "the oldest stands still"
        assert [c.request for c in plan.chunks] == s.running, "a running request stands still"
        assert sum(c.length for c in plan.chunks) <= s.max_tokens and len(s.running) <= s.max_seqs
        order = [r.id for r in s.running] + [r.id for r in s.waiting]
        assert order == sorted(order), "not first in, first out"
        self.started += [r.id for r in s.running if r.id not in self.started]
        self.pool.check(r.sequence.held for r in s.running)
        self.freed += any(r.sequence.freed for r in s.running)
        if plan.chunks and plan.chunks[-1].wants_logits == "none":
            self.shrunk += sum(c.length for c in plan.chunks) < s.max_tokens
        anew = [c.request for c in plan.chunks[:-1] if c.wants_logits == "none"]
        assert self.restarts or not anew, "what others want has grown"
        self.restarted += bool(anew)
        rows = plan.rows()
        sampled = iter(self.device.run(rows))
        if self.rng.random() < 0.05:
            s.abort()
            self.aborts += 1
            return
        tokens = {c.request.id: next(sampled) for c in plan.chunks if c.wants_logits == "last"}
        self.cancel()
        for finished in s.commit(plan, tokens):
            assert finished.request_id not in self.finished
            self.finished[finished.request_id] = finished.reason

    def run(self) -> None:
        arrivals = self.rng.randint(1, 16)
        while arrivals or self.scheduler.has_work:
            while arrivals and self.rng.random() < 0.4:
                self.add()
                arrivals -= 1
            if self.scheduler.has_work:
                self.step()
        assert self.finished.keys() == self.requests.keys()
        assert self.started == sorted(self.started)
        self.pool.check([])
        assert self.pool.available == self.pool.num_blocks
        for request_id, request in self.requests.items():
            tokens, reason = alone(
                request,
                self.vocab_size,
                self.max_context,
                self.capacity,
                self.bounds,
                self.window,
                self.restarts,
            )
            if request_id in self.cancelled:
                assert request.sequence.tokens == tokens[: len(request.sequence.tokens)]
            else:
                assert request.sequence.tokens == tokens
                assert self.finished[request_id] == reason


@pytest.mark.parametrize(
    "seeds",
    [range(700), pytest.param(range(700, 2000), marks=pytest.mark.slow)],
    ids=["some", "many"],
)
def test_random_workloads(seeds):
    kinds = ["preempted", "prefix reused", "filled the cache", "chunked", "retried"]
    kinds += ["freed", "chunk cut to the cache", "preempted with a window"]
    kinds += ["started anew before others"]
    seen = dict.fromkeys(kinds, 0)
    for seed in seeds:
        workload = Workload(seed)
        workload.run()
        for request in workload.requests.values():
            kind = "preempted with a window" if workload.is_endless else "preempted"
            seen[kind] += request.preemptions
            seen["prefix reused"] += request.cached_tokens > 0
            seen["filled the cache"] += len(request.sequence.tokens) > workload.capacity
            seen["chunked"] += len(request.ids) > workload.scheduler.max_tokens
        seen["retried"] += workload.aborts
        seen["freed"] += workload.freed
        seen["chunk cut to the cache"] += workload.shrunk
        seen["started anew before others"] += workload.restarted
    assert min(seen.values()) > 50, f"the workloads are too tame: {seen}"
