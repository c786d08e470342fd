"""One sequence of tokens and the cache blocks that hold its keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy

from kestrel.cache.block_pool import BlockPool

__all__ = ["Sequence", "blocks_needed", "window_blocks"]


def window_blocks(window: int, block_size: int) -> int:
    """Full blocks that a sequence keeps when a token sees ``window`` positions, itself included.

    The tokens to come lie behind the last full block: they see at most ``window - 1`` positions of
    the full ones. The last is kept in any case: the next one is published behind it.
    """
    return max(1, -(-(window - 1) // block_size))


def blocks_needed(positions: int, block_size: int, window: int | None) -> int:
    """Blocks without which a sequence of so many positions cannot be computed."""
    blocks = -(-positions // block_size)
    return blocks if window is None else min(blocks, window_blocks(window, block_size) + 1)


class Sequence:
    """Tokens, how many of them are computed, and their blocks.

    Invariant: with B = ``pool.block_size``, the first ``computed // B`` blocks are full, published
    and possibly shared; every later block is private to this sequence. New keys and values go to
    positions from ``computed`` on, so a step never writes to a block that anybody else can read.

    Where every layer has a window (``pool.window``, W: the token at position p sees the positions j
    with p - W < j <= p), blocks whose positions no later token can see are given back while the
    sequence grows. Their entries in ``blocks`` stay, so that indices do; they mean nothing.

    Frequencies of some rotary embeddings (RoPE types ``dynamic`` and ``longrope``) follow the
    length of the sequence; ``pool.rope_length_range`` then says between which lengths. A token is
    rotated once and for all by the length that the sequence had at the end of the call that
    appended it: a prompt's tokens by the prompt's length, a generated token at position p by
    p + 1. So does a model of transformers called once for a prompt and once for each token after
    it; but here chunks, batches, preemption and cached prefixes change nothing. Where the pool
    ``restarts`` (Phi-3, as its ``generate`` does), all tokens are rotated by the length that the
    sequence has now: when that comes to count as another, what is computed is dropped, and the
    blocks are given back. Blocks are shared only between sequences whose tokens have the same
    lengths.

    Attributes:
        tokens: token ids; grows through ``append`` and ``extend`` alone.
        rope_lengths: int32, for each token the length that it is rotated by, brought into the
            pool's range; None when nothing follows the length.
        computed: positions whose keys and values are in the cache, at most ``len(tokens)``.
        blocks: int32 block ids; position p lies in block ``blocks[p // B]`` at offset ``p % B``.
        freed: how many of them, the first ones, were given back.
        is_changing: in the middle of a change of several of these. Ctrl-C may fall there; what
            comes next then gives all blocks back, and all positions are computed again.
    """

    __slots__ = ("blocks", "computed", "freed", "is_changing", "pool", "rope_lengths", "tokens")

    def __init__(self, pool: BlockPool, tokens: Iterable[int] = ()) -> None:
        self.pool = pool
        self.tokens = list(tokens)
        self.rope_lengths = None if pool.rope_length_range is None else array("i")
        self.computed = 0
        self.blocks = array("i")
        self.freed = 0
        self.is_changing = False
        self._note_lengths()

    @property
    def held(self) -> array[int]:
        """A copy of the block ids that are this sequence's to read, share and release."""
        return self.blocks[self.freed :]

    def append(self, token: int) -> None:
        """One more token, to be rotated by the length that the sequence then has.

        With ``pool.restarts`` this may drop all that is computed.
        """
        if self.is_changing:
            self._mend()
        self.tokens.append(token)
        if self.rope_lengths is not None:
            self._note_lengths()

    def extend(self, tokens: Iterable[int]) -> None:
        """More tokens at once: all of them to be rotated by the length that the sequence then has.

        With ``pool.restarts`` this may drop all that is computed.
        """
        self._mend()
        self.tokens.extend(tokens)
        self._note_lengths()

    def adopt_prefix(self) -> int:
        """Take the longest prefix that the cache knows, and return its length in positions.

        For a sequence without blocks. The last token is always left to compute, since its logits
        are wanted.
        """
        assert not self.blocks, "a prefix can only be adopted before anything is computed"
        size = self.pool.block_size
        most = (len(self.tokens) - 1) // size
        self.is_changing = True
        self.blocks.extend(self.pool.find_prefix(self.tokens, most, self.rope_lengths))
        self.computed = len(self.blocks) * size
        self._free_unseen()
        self.is_changing = False
        return self.computed

    def ahead(self, n_new: int, step: int) -> int:
        """Positions to reserve before the next ``n_new`` are computed, up to ``step`` at a time.

        All of them; with a window, as many as it and a step cover, since blocks come free on the
        way: then reserve for each step, too.
        """
        window = self.pool.window
        return n_new if window is None else self.fitting(min(n_new, window + step))

    def fitting(self, n_new: int) -> int:
        """Of the next ``n_new`` positions, those that one step can compute in a cache of this size.

        Without a window that is no question of steps: all of them.
        """
        if self.pool.window is None:
            return n_new
        room = (self.pool.num_blocks + self.freed) * self.pool.block_size - self.computed
        return min(n_new, max(room, 1))

    def reserve(self, n_new: int) -> None:
        """Make room for the next ``n_new`` positions; raises CapacityError, and changes nothing."""
        if self.computed + n_new > len(self.blocks) * self.pool.block_size:
            self.blocks.extend(self.pool.allocate(self.missing(n_new)))

    def try_reserve(self, n_new: int) -> bool:
        """As `reserve`, but says whether there was room."""
        if self.computed + n_new <= len(self.blocks) * self.pool.block_size:
            return True  # 15 of 16 decode steps
        blocks = self.pool.try_allocate(self.missing(n_new))
        if blocks is None:
            return False
        self.blocks.extend(blocks)
        return True

    def missing(self, n_new: int) -> int:
        """Blocks to allocate before ``n_new`` more positions can be computed; may be negative."""
        size = self.pool.block_size
        return (self.computed + n_new + size - 1) // size - len(self.blocks)

    def advance(self, n: int) -> None:
        """The next ``n`` positions are computed; publish the blocks that became full."""
        size = self.pool.block_size
        first = self.computed // size
        computed = self.computed + n
        assert computed <= len(self.tokens) and computed <= len(self.blocks) * size
        end = computed // size
        if end == first:
            self.computed = computed
            return  # 15 of 16 decode steps
        self.is_changing = True
        self.computed = computed
        blocks, lengths = self.blocks, self.rope_lengths
        for i in range(first, end):
            span = slice(i * size, (i + 1) * size)
            own, parent = blocks[i], blocks[i - 1] if i else None
            rotated_by = None if lengths is None else lengths[span]
            blocks[i] = self.pool.publish(parent, self.tokens[span], own, rotated_by)
            if blocks[i] != own:
                self.pool.release((own,))
        self._free_unseen()
        self.is_changing = False

    def fork(self) -> Sequence:
        """A sequence with the same tokens that shares the full blocks.

        Nothing is copied: the child computes the positions of the last, partly filled block again,
        and gets the same bits, because arithmetic is exact.
        """
        self._mend()
        child = Sequence(self.pool)
        child.tokens = list(self.tokens)
        child.rope_lengths = copy(self.rope_lengths)
        full = self.computed // self.pool.block_size
        child.blocks.extend(self.blocks[:full])
        child.freed = self.freed
        self.pool.share(child.held)
        child.computed = full * self.pool.block_size
        return child

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens and drop the blocks past them.

        If the cut falls inside a block that is published, that block is released too, and its
        positions have to be computed again. All have to, unless ``adopt_prefix`` finds some, if
        what the next token sees was given back, or if all tokens are now rotated by another length.
        Raises ValueError outside 0..len(tokens).
        """
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot cut a sequence of {len(self.tokens)} tokens to {length}")
        self._mend()
        self.is_changing = True
        size = self.pool.block_size
        del self.tokens[length:]
        if self.rope_lengths is not None:
            del self.rope_lengths[length:]
            self._note_lengths()
        self.computed = min(self.computed, length)
        if self.freed > self._unseen():
            self.release()
            return
        keep = (length + size - 1) // size
        partial = self.computed % size
        if partial and not self.pool.is_private(self.blocks[self.computed // size]):
            self.computed -= partial
            keep = self.computed // size
        dropped = self.blocks[keep:]
        del self.blocks[keep:]
        self.is_changing = False
        self.pool.release(dropped)

    def release(self) -> None:
        """Give all blocks back and keep the tokens; what was published stays findable."""
        self.is_changing = True
        dropped = self.held
        self.blocks, self.computed, self.freed = array("i"), 0, 0
        self.is_changing = False
        self.pool.release(dropped)

    def is_writable(self, start: int, n: int) -> bool:
        """Whether the ``n`` positions from ``start`` on have blocks that nobody else can read."""
        size, blocks = self.pool.block_size, self.blocks
        first, last = start // size, (start + n - 1) // size
        if last >= len(blocks):
            return False
        is_private = self.pool.is_private
        if first == last:
            return is_private(blocks[first])
        return all(map(is_private, blocks[first : last + 1]))

    def _mend(self) -> None:
        """Start anew where an interrupt has left a change half done."""
        if self.is_changing:
            if self.rope_lengths is not None:
                del self.rope_lengths[len(self.tokens) :]
                self._note_lengths()
            self.release()

    def _unseen(self) -> int:
        """Leading blocks whose positions no token behind the full blocks sees."""
        window, size = self.pool.window, self.pool.block_size
        return 0 if window is None else max(self.computed // size - window_blocks(window, size), 0)

    def _free_unseen(self) -> None:
        start, end = self.freed, self._unseen()
        if end > start:
            dropped = self.blocks[start:end]
            self.freed = end  # first: see block_pool about Ctrl-C
            self.blocks[start:end] = array("i", [0]) * (end - start)
            self.pool.release(dropped)

    def _note_lengths(self) -> None:
        """Give the tokens that have none yet their rope length, or all where the pool restarts."""
        lengths, bounds = self.rope_lengths, self.pool.rope_length_range
        if lengths is not None and bounds is not None:
            total = len(self.tokens)
            length = min(max(total, bounds[0]), bounds[1])
            if self.pool.restarts and lengths and lengths[0] != length:
                self.release()  # first: interrupted here, nothing is left of the other length
                del lengths[:]
            lengths.extend([length] * (total - len(lengths)))
