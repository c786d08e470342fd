"""Fill the input arrays of a step: the only code that writes StepInputs.

Kernels trust these arrays (ids in range, slots inside the cache and written once), so every value
is checked here. One decode token is plain item writes; a chunk is a few slices.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from kestrel.errors import CapacityError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence as AbstractSequence

    from kestrel.backends.base import StepInputs
    from kestrel.cache.sequence import Sequence

__all__ = ["Row", "StepArrays", "StepLimits", "StepShape", "WantsLogits", "check_ids", "fill"]

#: Which rows of a chunk need logits: a chunk in the middle of a prompt none, a prompt's end and a
#: decode step the last, scoring all.
WantsLogits = Literal["none", "last", "all"]


#: One sequence's part of a step: the sequence, the first of its positions, how many, and whose
#: logits are wanted.
Row = tuple["Sequence", int, int, WantsLogits]


class StepShape(NamedTuple):
    """How much of the arrays is in use: N, S and L, the arguments of ``Executable.submit``."""

    n_tokens: int
    n_seqs: int
    n_logit_rows: int


_ONE_TOKEN = StepShape(1, 1, 1)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the arrays' own shapes do not say.

    Attributes:
        vocab_size: ids run from 0 to ``vocab_size - 1``.
        max_context: positions run from 0 to ``max_context - 1``.
        num_slots: slots in the cache, blocks times block size.
    """

    vocab_size: int
    max_context: int
    num_slots: int


class StepArrays:
    """The arrays of StepInputs as memoryviews of int32, made once for an executable.

    Decode writes single items, right after a step has swept the caches with the model's weights,
    and NumPy's way to an item is long.
    """

    __slots__ = (
        "block_table", "context_len", "logit_rows", "max_blocks", "positions", "rope_lengths",
        "seq_start", "slots", "token_ids",
    )  # fmt: skip

    def __init__(self, inputs: StepInputs) -> None:
        self.token_ids = memoryview(inputs.token_ids)  # [N]
        self.positions = memoryview(inputs.positions)  # [N]
        self.rope_lengths = memoryview(inputs.rope_lengths)  # [N]
        self.slots = memoryview(inputs.slots)  # [N]
        self.seq_start = memoryview(inputs.seq_start)  # [S + 1]
        self.context_len = memoryview(inputs.context_len)  # [S]
        self.block_table = memoryview(inputs.block_table).cast("B").cast("i")  # [S * max_blocks]
        self.max_blocks = inputs.block_table.shape[1]
        self.logit_rows = memoryview(inputs.logit_rows)  # [L]


def check_ids(ids: AbstractSequence[int], vocab_size: int, start: int = 0) -> None:
    """Raise RequestError unless all ids are in 0..vocab_size-1; ``start``: the first's position."""
    if len(ids) and (min(ids) < 0 or max(ids) >= vocab_size):
        at = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise RequestError(
            f"token id {ids[at]} at position {start + at}: expected 0 to {vocab_size - 1} "
            f"(vocabulary of {vocab_size}); was the text encoded with another model's tokenizer?"
        )


def fill(arrays: StepArrays, rows: AbstractSequence[Row], limits: StepLimits) -> StepShape:
    """Write the arrays for one step, and return how much of each is in use.

    Args:
        arrays: what lies beyond the returned shape is left as it was, and so are rope_lengths of
            a model whose frequencies follow no length.
        rows: each sequence at most once, with its next positions and blocks reserved for them.

    Raises:
        RequestError: a token id outside the vocabulary, or a position past the context limit.
        CapacityError: more tokens, sequences or logit rows than the arrays hold.
    """
    if len(rows) == 1 and _fill_token(arrays, rows[0], limits):
        return _ONE_TOKEN
    token_ids, positions, slots = arrays.token_ids, arrays.positions, arrays.slots
    seq_start, context_len = arrays.seq_start, arrays.context_len
    logit_rows, block_table = arrays.logit_rows, arrays.block_table
    max_blocks = arrays.max_blocks
    max_n, max_s, max_l = len(token_ids), len(context_len), len(logit_rows)
    vocab_size, max_context = limits.vocab_size, limits.max_context
    assert len(rows) == 1 or len({id(row[0]) for row in rows}) == len(rows)

    n = s = wanted = 0  # tokens, sequences and logit rows so far
    seq_start[0] = 0
    for sequence, start, length, wants_logits in rows:
        blocks, size = sequence.blocks, sequence.pool.block_size
        end = start + length
        new = 1 if wants_logits == "last" else 0 if wants_logits == "none" else length
        if n + length > max_n or s == max_s or wanted + new > max_l:
            raise _too_large(rows, max_n, max_s, max_l)
        if end > max_context:
            raise RequestError(
                f"{end} tokens do not fit the context limit of {max_context} positions: shorten "
                f"the prompt or raise the limit (Limits.max_context), if the model allows it"
            )
        # Our own invariants. Block ids come from the pool, so they are in range if the pool is.
        assert start == sequence.computed and 1 <= length <= len(sequence.tokens) - start
        assert sequence.pool.num_blocks * size <= limits.num_slots and end <= max_blocks * size
        assert sequence.is_writable(start, length)

        if length == 1:
            token = sequence.tokens[start]
            if not 0 <= token < vocab_size:
                check_ids((token,), vocab_size, start)
            token_ids[n] = token
            positions[n] = start
            slots[n] = blocks[start // size] * size + start % size
        else:
            tokens = sequence.tokens[start:end]
            check_ids(tokens, vocab_size, start)
            token_ids[n : n + length] = array("i", tokens)
            positions[n : n + length] = array("i", range(start, end))
            slots[n : n + length] = _slots(blocks, size, start, end)
        count = (end + size - 1) // size
        at = s * max_blocks
        block_table[at : at + count] = memoryview(blocks)[:count]
        context_len[s] = end
        n += length
        s += 1
        seq_start[s] = n
        if new == 1:
            logit_rows[wanted] = n - 1
        else:
            for i in range(new):
                logit_rows[wanted + i] = n - new + i
        wanted += new
    if rows and rows[0][0].rope_lengths is not None:
        _fill_rope_lengths(arrays.rope_lengths, rows)
    return StepShape(n, s, wanted)


def _fill_token(arrays: StepArrays, row: Row, limits: StepLimits) -> bool:
    """`fill` for a decode step of one sequence, in the fewest lines, since each is a cache miss.

    False, and nothing is written, where the row is another or something is wrong with it.
    """
    sequence, start, length, wants_logits = row
    blocks, pool = sequence.blocks, sequence.pool
    size = pool.block_size
    at, offset = divmod(start, size)
    if (
        length != 1
        or wants_logits != "last"
        or not start == sequence.computed < min(len(sequence.tokens), limits.max_context)
        or not pool.num_blocks * size <= limits.num_slots
        or not at < min(len(blocks), arrays.max_blocks)
        or not pool.is_private(blocks[at])
    ):
        return False
    token = sequence.tokens[start]
    if not 0 <= token < limits.vocab_size:
        return False
    arrays.token_ids[0] = token
    arrays.positions[0] = start
    arrays.slots[0] = blocks[at] * size + offset
    if sequence.rope_lengths is not None:
        arrays.rope_lengths[0] = sequence.rope_lengths[start]
    arrays.seq_start[0] = arrays.logit_rows[0] = 0
    arrays.seq_start[1] = 1
    arrays.context_len[0] = start + 1
    arrays.block_table[: at + 1] = memoryview(blocks)[: at + 1]
    return True


def _slots(blocks: array[int], size: int, start: int, end: int) -> array[int]:
    slots = array("i")
    for at in range(start // size, (end - 1) // size + 1):
        first = (blocks[at] - at) * size  # slot of position 0, if it lay in this block
        slots.extend(range(first + max(start, at * size), first + min(end, (at + 1) * size)))
    return slots


def _fill_rope_lengths(rope_lengths: memoryview, rows: AbstractSequence[Row]) -> None:
    n = 0
    for sequence, start, length, _ in rows:
        rope_lengths[n : n + length] = sequence.rope_lengths[start : start + length]
        n += length


def _too_large(rows: AbstractSequence[Row], max_n: int, max_s: int, max_l: int) -> CapacityError:
    n = sum(row[2] for row in rows)
    wanted = sum({"none": 0, "last": 1, "all": row[2]}[row[3]] for row in rows)
    return CapacityError(
        f"a step of {n} tokens (at most {max_n}, Limits.max_tokens), {len(rows)} sequences (at "
        f"most {max_s}, Limits.max_seqs) and {wanted} rows of logits (at most {max_l}): split "
        f"the step or raise the limit"
    )
