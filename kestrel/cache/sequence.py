"""One sequence of tokens and the cache blocks that hold its keys and values."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kestrel.cache.block_pool import BlockPool

__all__ = ["Sequence"]


class Sequence:
    """Tokens, how many of them are computed, and their blocks.

    Invariant: with B = ``pool.block_size``, the first ``computed // B`` blocks are full, published
    and possibly shared; every later block is private to this sequence. New keys and values go to
    positions from ``computed`` on, so a step never writes to a block that anybody else can read.

    Attributes:
        tokens: token ids; append to it freely.
        computed: positions whose keys and values are in the cache, at most ``len(tokens)``.
        blocks: int32 block ids; position p lies in block ``blocks[p // B]`` at offset ``p % B``.
    """

    __slots__ = ("blocks", "computed", "pool", "tokens")

    def __init__(self, pool: BlockPool, tokens: Iterable[int] = ()) -> None:
        self.pool = pool
        self.tokens = list(tokens)
        self.computed = 0
        self.blocks = array("i")

    def adopt_prefix(self) -> int:
        """Take the longest prefix that the cache knows, and return its length in positions.

        For a sequence without blocks. The last token is always left to compute, since its logits
        are wanted.
        """
        assert not self.blocks, "a prefix can only be adopted before anything is computed"
        size = self.pool.block_size
        self.blocks.extend(self.pool.find_prefix(self.tokens, (len(self.tokens) - 1) // size))
        self.computed = len(self.blocks) * size
        return self.computed

    def reserve(self, n_new: int) -> None:
        """Make room for the next ``n_new`` positions; raises CapacityError, and changes nothing."""
        missing = self.missing(n_new)
        if missing > 0:
            self.blocks.extend(self.pool.allocate(missing))

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
        full = self.computed // size
        computed = self.computed + n
        assert computed <= len(self.tokens) and computed <= len(self.blocks) * size
        self.computed = computed
        blocks = self.blocks
        for i in range(full, computed // size):
            tokens = self.tokens[i * size : (i + 1) * size]
            own = blocks[i]
            blocks[i] = self.pool.publish(blocks[i - 1] if i else None, tokens, own)
            if blocks[i] != own:
                self.pool.release((own,))

    def fork(self) -> Sequence:
        """A sequence with the same tokens that shares the full blocks.

        Nothing is copied: the child computes the positions of the last, partly filled block again,
        and gets the same bits, because arithmetic is exact.
        """
        child = Sequence(self.pool, self.tokens)
        full = self.computed // self.pool.block_size
        child.blocks.extend(self.blocks[:full])
        self.pool.share(child.blocks)
        child.computed = full * self.pool.block_size
        return child

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens and drop the blocks past them.

        If the cut falls inside a block that is published, that block is released too, and its
        positions have to be computed again. Raises ValueError outside 0..len(tokens).
        """
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot cut a sequence of {len(self.tokens)} tokens to {length}")
        size = self.pool.block_size
        del self.tokens[length:]
        self.computed = min(self.computed, length)
        keep = (length + size - 1) // size
        partial = self.computed % size
        if partial and not self.pool.is_private(self.blocks[self.computed // size]):
            self.computed -= partial
            keep = self.computed // size
        dropped = self.blocks[keep:]
        del self.blocks[keep:]
        self.pool.release(dropped)

    def release(self) -> None:
        """Give all blocks back and keep the tokens; what was published stays findable."""
        dropped, self.blocks, self.computed = self.blocks, array("i"), 0
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
