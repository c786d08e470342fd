"""Sequences that grow, fork, cut and end over one small pool: every slot that is read is right."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest
from unit.paged_device import PagedDevice, key_values, next_token

from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence


@dataclass
class Session:
    """A sequence, and the lengths that its tokens must be rotated by."""

    sequence: Sequence
    lengths: list[int]


class Sessions:
    """A seeded mix of sessions, with the checks of each step."""

    def __init__(self, seed: int, window: int | None) -> None:
        self.rng = rng = random.Random(seed)
        self.window = window
        self.bounds = rng.choice([None, (1, 1000), (9, 20)])
        self.restarts = bool(self.bounds) and rng.random() < 0.5
        self.vocab_size = rng.choice([1, 2, 50])
        self.pool = BlockPool(
            rng.randint(4, 24), rng.choice([1, 2, 4, 8]), window=window,
            rope_length_range=self.bounds, restarts=self.restarts,
        )  # fmt: skip
        self.capacity = self.pool.num_blocks * self.pool.block_size
        max_context = self.capacity + (40 if window else 0)
        self.device = PagedDevice(
            self.pool, max_tokens=64, max_seqs=8, max_context=max_context,
            vocab_size=self.vocab_size, max_rows=64,
        )  # fmt: skip
        self.live: list[Session] = []
        self.seen: Counter[str] = Counter()

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.act()
            self.check()
        for session in self.live:
            session.sequence.release()
        self.pool.check([])
        assert self.pool.available == self.pool.num_blocks

    def act(self) -> None:
        rng, action = self.rng, self.rng.random()
        if not self.live or action < 0.12:
            ids = self.ids(rng.randint(1, 24))
            session = Session(Sequence(self.pool, ids), [])
            self.rotate(session)
            if rng.random() < 0.7:
                self.adopt(session.sequence)
            self.live.append(session)
            return
        session = rng.choice(self.live)
        sequence = session.sequence
        if action < 0.2:
            self.live.append(Session(sequence.fork(), list(session.lengths)))
            self.seen["forked behind freed blocks"] += sequence.freed > 0
        elif action < 0.32:
            length = rng.randint(max(len(sequence.tokens) - rng.choice([2, 2, 99]), 0),
                                 len(sequence.tokens))  # fmt: skip
            freed, computed = sequence.freed, sequence.computed
            sequence.truncate(length)
            del session.lengths[length:]
            self.rotate(session)
            self.seen["cut and went on"] += 0 < freed == sequence.freed and length < computed
            self.seen["cut into freed blocks"] += freed > sequence.freed
        elif action < 0.4:
            ids = self.ids(rng.randint(0, 12))
            if len(sequence.tokens) + len(ids) <= self.device.limits.max_context:
                sequence.extend(ids)
                self.rotate(session)
        elif action < 0.45:
            sequence.release()
            if rng.random() < 0.5:
                self.live = [each for each in self.live if each is not session]
            elif sequence.tokens:
                self.adopt(sequence)
        else:
            self.step()

    def adopt(self, sequence: Sequence) -> None:
        assert sequence.adopt_prefix() == sequence.computed
        self.seen["adopted"] += sequence.computed > 0
        self.seen["adopted less than was found"] += sequence.freed > 0

    def ids(self, count: int) -> list[int]:
        return self.rng.choices(range(self.vocab_size), k=count)

    def rotate(self, session: Session) -> None:
        """Note what the tokens that are there now must be rotated by."""
        if self.bounds:
            total = len(session.sequence.tokens)
            length = min(max(total, self.bounds[0]), self.bounds[1])
            if self.restarts and session.lengths and session.lengths[0] != length:
                self.seen["started anew"] += 1
            kept = [] if self.restarts else session.lengths
            session.lengths = kept + [length] * (total - len(kept))

    def check(self) -> None:
        self.pool.check(session.sequence.held for session in self.live)
        size = self.pool.block_size
        for session in self.live:
            sequence = session.sequence
            assert list(sequence.rope_lengths or ()) == session.lengths
            # No token behind the last full block sees these positions, and at most one block more
            # than must be is kept: the last full one, for a window of 1.
            full = sequence.computed // size
            unseen = max(full * size - self.window + 1, 0) if self.window else 0
            assert sequence.freed == min(unseen // size, max(full - 1, 0))
            assert len(sequence.blocks) == sequence.freed + len(sequence.held)

    def step(self) -> None:
        """One batch over some of them; each generates a token if all of it is computed."""
        rng, rows, chosen = self.rng, [], []
        for session in rng.sample(self.live, rng.randint(1, min(8, len(self.live)))):
            sequence = session.sequence
            wanted = len(sequence.tokens) - sequence.computed
            length = sequence.fitting(rng.randint(1, min(wanted, 8)) if wanted else 0)
            if length and sequence.try_reserve(length):
                wants = rng.choice(["last", "all"] if length == wanted else ["none", "all"])
                rows.append((sequence, sequence.computed, length, wants))
                chosen.append(session)
        if not rows:
            return
        tokens = self.device.run(rows)
        for session, (sequence, start, length, wants) in zip(chosen, rows):
            own = [tokens.pop(0) for _ in range({"none": 0, "last": 1, "all": length}[wants])]
            sequence.advance(length)
            values = key_values(sequence.tokens, session.lengths, self.window)[: start + length]
            expected = [next_token(value, self.vocab_size) for value in values]
            assert own == expected[len(expected) - len(own) :]
            self.seen["longer than the cache"] += start + length > self.capacity
            if start + length == len(sequence.tokens) < self.device.limits.max_context:
                sequence.append(own[-1])
                self.rotate(session)
        assert not tokens


@pytest.mark.parametrize("window", [None, 1, 2, 5, 9])
def test_random_sessions(window):
    seen: Counter[str] = Counter()
    for seed in range(100):
        sessions = Sessions(seed, window)
        sessions.run(80)
        seen += sessions.seen
    kinds = ["adopted", "started anew"]
    if window:
        kinds += ["forked behind freed blocks", "cut and went on", "cut into freed blocks"]
        kinds += ["adopted less than was found", "longer than the cache"]
    assert min(seen[kind] for kind in kinds) > 10, f"the sessions are too tame: {seen}"
