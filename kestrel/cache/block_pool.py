"""Blocks of KV cache positions: who holds them, and which prefixes of tokens they contain.

A block is *held* (its reference count says how often), *cached* (nobody holds it, but its content
can still be found) or *blank*. A full block may be *published* under the key (key of the block
before it, its own tokens, and the lengths that these were rotated by, where they matter). Keys are
compared by equality, never by hash alone, so a collision cannot hand one prompt's cache to another;
the key of the block before is a serial number that is never used twice, so by induction an equal
key means an equal prefix from the first token on.

Every operation costs O(blocks it is about), and the index has at most one entry a block.

Ctrl-C may fall between any two lines, also under the lock. The order of the lines is such that it
can then cost a block, which nobody gets any more, but never gives one to two owners.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from kestrel.cache.fork_locks import free_after_fork
from kestrel.errors import CapacityError, SessionBusyError

__all__ = ["BlockPool"]

_START = 0  # serial of the empty prefix, the parent of every first block
_UNPUBLISHED = -1


class BlockPool:
    """Reference counts and the prefix index of ``num_blocks`` blocks of ``block_size`` positions.

    Blocks are ids from 0 to ``num_blocks - 1``. The methods may be called from several threads:
    the sessions of one model share a pool.

    Args:
        num_blocks: blocks in the cache, at least 1.
        block_size: positions per block.
        limit: what a user raises to get more blocks; ends up in the text of CapacityError.
        window: positions that a token sees, itself included; None: all up to it. See Sequence.
        rope_length_range: (first, last) lengths between which the frequencies of the rotary
            embedding follow the length of a sequence, see Sequence; None: they never do.
        restarts: a sequence whose length comes to count as another drops what is computed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        limit: str = "the size of the KV cache (Limits.cache_bytes)",
        window: int | None = None,
        rope_length_range: tuple[int, int] | None = None,
        restarts: bool = False,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise CapacityError(
                f"KV cache: expected at least 1 block of at least 1 position, found {num_blocks} "
                f"blocks of {block_size}: raise {limit}"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.limit = limit
        self.window = window
        self.rope_length_range = rope_length_range
        self.restarts = restarts
        self._lock = free_after_fork(threading.RLock())  # it knows its owner: see _exclusive
        self._returned: deque[int] = deque()  # released, not yet counted
        self._counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, -1, -1))  # a stack: the lowest id is used first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._index: dict[tuple[int, ...], int] = {}
        self._keys: list[tuple[int, ...] | None] = [None] * num_blocks
        self._serials = [_UNPUBLISHED] * num_blocks
        self._last_serial = _START

    @property
    def _exclusive(self) -> threading.RLock:
        """The lock, for a ``with``, as ``Turns.lock`` is for steps.

        Raises SessionBusyError in a signal handler that has interrupted its holder, whose change is
        half done and goes on only after the handler.
        """
        if self._lock._is_owned():
            raise SessionBusyError(
                "this thread is in the middle of a change to this model's cache: a signal handler "
                "cannot compute there; let it set a flag, and compute afterwards"
            )
        return self._lock

    @property
    def available(self) -> int:
        """Blocks that `allocate` can still hand out: blank and cached ones."""
        with self._exclusive:
            self._take_back()
            return len(self._blank) + len(self._cached)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds and whose content can still be found."""
        return len(self._cached)

    def allocate(self, n: int) -> list[int]:
        """``n`` private blocks, held once; raises CapacityError, and takes none, if too few."""
        blocks = self.try_allocate(n)
        if blocks is None:
            raise CapacityError(
                f"KV cache: {n} more blocks of {self.block_size} positions needed, "
                f"{self.available} of {self.num_blocks} available: raise {self.limit}, or end "
                f"other requests and sessions first"
            )
        return blocks

    def try_allocate(self, n: int) -> list[int] | None:
        """As `allocate`, but None if too few blocks are left."""
        with self._exclusive:
            self._take_back()
            if n > len(self._blank) + len(self._cached):
                return None
            blocks = []
            for _ in range(n):
                if self._blank:
                    block = self._blank.pop()
                else:
                    block, _ = self._cached.popitem(last=False)
                    self._forget(block)
                self._counts[block] = 1
                blocks.append(block)
            return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more that somebody holds already; raises ValueError if nobody does."""
        with self._exclusive:
            for block in blocks:
                if not self._counts[block]:
                    raise ValueError(f"block {block}: only a block that is held can be shared")
                self._counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Hold blocks once less, given in the order of their positions.

        The garbage collector may call it in the middle of any other method, on the very thread that
        holds the lock: it does not wait for itself, and whoever comes next counts them. Raises
        ValueError for a block that nobody holds.
        """
        # The last position goes first: a prefix is then reused after what continues it, which
        # cannot be found without it. (Blocks that left a window go before what continues them.)
        self._returned.extend(reversed(blocks))
        if not self._lock._is_owned():
            with self._lock:
                self._take_back()

    def publish(
        self, parent: int | None, tokens: Sequence[int], block: int,
        rope_lengths: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        """Make a full private block findable, and return the block to use in its place from now on.

        That is ``block``, unless another block already has this content: then that one is held
        once more for the caller, who releases ``block``. Two sequences with an equal prefix so end
        up with the same blocks, even if they computed it at the same time.

        Args:
            parent: the published block before it, None for the first of a sequence.
            tokens: the ``block_size`` tokens whose keys and values it contains.
            block: held once and unpublished, else ValueError.
            rope_lengths: of the tokens.
        """
        with self._exclusive:
            before = _START if parent is None else self._serials[parent]
            if before == _UNPUBLISHED or len(tokens) != self.block_size:
                raise ValueError(
                    f"block {block}: expected {self.block_size} tokens after a published block, "
                    f"found {len(tokens)} after block {parent}"
                )
            if self._counts[block] != 1 or self._keys[block] is not None:
                raise ValueError(f"block {block}: only a private block can be published")
            key = self._key(before, self._content(tokens, rope_lengths))
            known = self._index.get(key)
            if known is not None:
                self._hold(known)
                return known
            self._last_serial += 1
            self._keys[block] = key
            self._serials[block] = self._last_serial
            self._index[key] = block
            return block

    def find_prefix(
        self, tokens: Sequence[int], max_blocks: int | None = None,
        rope_lengths: Sequence[int] | None = None,
    ) -> list[int]:  # fmt: skip
        """Hold and return the published blocks of the longest known prefix of ``tokens``.

        Only full blocks count, at most ``max_blocks`` of them, whose tokens were rotated by the
        same ``rope_lengths``. The caller releases them.
        """
        size = self.block_size
        limit = len(tokens) // size
        if max_blocks is not None:
            limit = min(limit, max_blocks)
        blocks: list[int] = []
        serial = _START
        with self._exclusive:
            for start in range(0, limit * size, size):
                content = tokens[start : start + size]
                if rope_lengths is not None:
                    content = self._content(content, rope_lengths[start : start + size])
                block = self._index.get(self._key(serial, content))
                if block is None:
                    break
                self._hold(block)
                blocks.append(block)
                serial = self._serials[block]
        return blocks

    def is_private(self, block: int) -> bool:
        """Whether the block may be written: held exactly once, and not published."""
        return self._counts[block] == 1 and self._keys[block] is None

    def check(self, owners: Iterable[Iterable[int]] | None = None) -> None:
        """Verify the invariants, for tests; with the blocks of each owner, the counts too."""
        with self._exclusive:
            self._take_back()
        blank, cached = set(self._blank), set(self._cached)
        held = {block for block, count in enumerate(self._counts) if count}
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert not (blank & cached or blank & held or cached & held), "a block is in two states"
        assert blank | cached | held == set(range(self.num_blocks)), "a block is lost"
        assert all(count >= 0 for count in self._counts)
        published = {b: key for b, key in enumerate(self._keys) if key is not None}
        assert self._index == {key: block for block, key in published.items()}
        assert len(self._index) == len(published), "two blocks under one key"
        assert not blank & published.keys() and cached <= published.keys()
        for block, serial in enumerate(self._serials):
            assert (serial == _UNPUBLISHED) == (block not in published)
        if owners is not None:
            counts = [0] * self.num_blocks
            for blocks in owners:
                for block in blocks:
                    counts[block] += 1
            assert counts == self._counts, f"owners hold {counts}, the pool counts {self._counts}"

    @staticmethod
    def _key(serial: int, content: Sequence[int]) -> tuple[int, ...]:
        return (serial, *content)

    def _content(
        self, tokens: Sequence[int], rope_lengths: Sequence[int] | None
    ) -> Sequence[int]:
        """What keys and values of a block follow from, beside the blocks before it.

        Lengths that all count as the first say nothing: short prompts of any length share blocks.
        """
        if rope_lengths is None or max(rope_lengths) <= self.rope_length_range[0]:
            return tokens
        return (*tokens, *rope_lengths)

    def _hold(self, block: int) -> None:
        self._cached.pop(block, None)
        self._counts[block] += 1

    def _take_back(self) -> None:
        while self._returned:
            self._drop(self._returned.popleft())

    def _drop(self, block: int) -> None:
        count = self._counts[block] - 1
        if count < 0:
            raise ValueError(f"block {block} is released more often than it is held")
        self._counts[block] = count
        if not count:
            if self._keys[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None
        if self._index.get(key) == block:
            del self._index[key]
        self._keys[block] = None
        self._serials[block] = _UNPUBLISHED
