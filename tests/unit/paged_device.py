"""A device that runs steps as kernels do, on hashes instead of vectors.

The K and V of a position depend on every token up to it. Here they are one integer with the same
property, so reading a wrong, stale or foreign slot anywhere changes what is generated, and every
slot that attention reads can be compared with the value that the tokens alone imply.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from kestrel.engine.step import StepArrays, StepLimits, StepShape, fill


def key_value(before: int, token: int, position: int, rope_length: int = 0) -> int:
    """What the cache holds for a token, given what it holds for the position before (0: none)."""
    return hash((before, token, position, rope_length))


def key_values(tokens, rope_lengths=None, window=None) -> list[int]:
    """What the cache must hold for each position of ``tokens``: the specification.

    Through the one before it, a position depends on all, as in a model of many layers; with a
    window of 1 it sees only itself.
    """
    values, before = [], 0
    for position, token in enumerate(tokens):
        before = key_value(
            0 if window == 1 else before,
            token,
            position,
            rope_lengths[position] if rope_lengths else 0,
        )
        values.append(before)
    return values


def next_token(value: int, vocab_size: int) -> int:
    """The model: the token after the prefix whose last position has this value."""
    return hash((value, "logits")) % vocab_size


class PagedDevice:
    """Step inputs, a cache, and steps over them that check every slot read and written."""

    def __init__(self, pool, *, max_tokens, max_seqs, max_context, vocab_size, max_rows=None):
        self.block_size = pool.block_size
        self.follows_length = pool.rope_length_range is not None
        self.window = pool.window
        self.limits = StepLimits(vocab_size, max_context, pool.num_blocks * pool.block_size)
        max_blocks = -(-max_context // pool.block_size)
        shapes = {
            "token_ids": max_tokens,
            "positions": max_tokens,
            "rope_lengths": max_tokens,
            "slots": max_tokens,
            "seq_start": max_seqs + 1,
            "context_len": max_seqs,
            "block_table": (max_seqs, max_blocks),
            "logit_rows": max_rows or max_seqs,
        }
        # As backends give them: memoryviews over memory that never moves.
        self.inputs = SimpleNamespace(
            **{k: memoryview(np.full(shape, -1, np.int32)) for k, shape in shapes.items()}
        )
        self.cache: dict[int, int] = {}

    def run(self, rows) -> list[int]:
        """Run one step, and return the next token for each row of logits."""
        shape = fill(StepArrays(self.inputs), rows, self.limits)
        given = SimpleNamespace(**{k: np.asarray(v) for k, v in vars(self.inputs).items()})
        n, s, wanted = shape
        assert shape == StepShape(sum(row[2] for row in rows), len(rows), wanted)
        slots = given.slots[:n].tolist()
        assert len(set(slots)) == n, "a slot is written twice in a step"
        values: list[int] = []
        for i in range(s):
            values += self._run_sequence(given, i, slots)
        # Only now: every sequence's writes are done, as before the kernel's attention.
        for i, (sequence, start, length, _) in enumerate(rows):
            assert given.context_len[i] == start + length
            tokens = sequence.tokens[: start + length]
            expected = key_values(tokens, sequence.rope_lengths, self.window)
            first = max(start - self.window + 1, 0) if self.window else 0
            assert self.visible(given, i, first) == expected[first:], "reads another prefix"
        vocab_size = self.limits.vocab_size
        return [next_token(values[row], vocab_size) for row in given.logit_rows[:wanted].tolist()]

    def visible(self, given, i: int, first: int) -> list[int]:
        """What attention reads for sequence ``i`` of the step, from position ``first`` on."""
        size, table = self.block_size, given.block_table[i].tolist()
        context = int(given.context_len[i])
        return [self.cache[table[p // size] * size + p % size] for p in range(first, context)]

    def _run_sequence(self, given, i: int, slots: list[int]) -> list[int]:
        size, table = self.block_size, given.block_table[i].tolist()
        values = []
        for row in range(int(given.seq_start[i]), int(given.seq_start[i + 1])):
            position = int(given.positions[row])
            before = 0
            if position and self.window != 1:
                before = self.cache[table[(position - 1) // size] * size + (position - 1) % size]
            rope_length = int(given.rope_lengths[row]) if self.follows_length else 0
            value = key_value(before, int(given.token_ids[row]), position, rope_length)
            self.cache[slots[row]] = value
            values.append(value)
        return values
