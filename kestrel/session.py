"""Session: one sequence over a model, step by step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kestrel.cache.sequence import Sequence
from kestrel.engine.step import check_ids
from kestrel.errors import RequestError, SessionBusyError

if TYPE_CHECKING:
    import numpy

    from kestrel.cache.block_pool import BlockPool
    from kestrel.engine.runner import Runner

__all__ = ["Session"]


class Session:
    """Tokens and their cached keys and values. Many sessions share one model, each one thread.

    When a call raises, also KeyboardInterrupt in the middle of a prefill, the session has the
    tokens that it had before.
    """

    def __init__(self, runner: "Runner", pool: "BlockPool") -> None:
        self._runner = runner
        self._pool = pool
        self._busy = threading.Lock()
        self._start(Sequence(pool))

    def _start(self, sequence: Sequence) -> None:
        self._sequence = sequence
        # The blocks go back to the pool with the session, also when nobody closes it.
        self._release = weakref.finalize(self, sequence.release)
        self._release.atexit = False

    def __len__(self) -> int:
        return len(self._sequence.tokens)

    @property
    def tokens(self) -> list[int]:
        """A copy of the token ids so far."""
        return list(self._sequence.tokens)

    @property
    def context_limit(self) -> int:
        """Most tokens that the session can hold."""
        return self._runner.max_context

    def prefill(self, ids: Iterable[int], chunk: int | None = None) -> "numpy.ndarray":
        """Append ``ids`` and return the logits after the last of them: float32 [V].

        ``chunk`` is the most tokens in one step (default: Limits.max_tokens); it changes no bit.
        Raises RequestError for no ids, ids outside the vocabulary, or more than fit the context;
        CapacityError when the cache is full; SessionBusyError when another thread is inside.
        """
        ids = list(ids)
        if chunk is not None and not (isinstance(chunk, int) and chunk >= 1):
            raise RequestError(f"chunk: expected an integer of at least 1, found {chunk!r}")
        with self._entered():
            self._check(ids)
            return self._extend(ids, chunk)

    def decode(self, token: int) -> "numpy.ndarray":
        """Append one token and return the logits after it: float32 [V]. Raises as ``prefill``."""
        with self._entered():
            self._check([token])
            return self._extend([token], None)

    def fork(self) -> "Session":
        """A session with the same tokens that shares the cached blocks."""
        with self._entered():
            other = Session(self._runner, self._pool)
            other._start(self._sequence.fork())
            return other

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises RequestError outside 0 to len(session)."""
        with self._entered():
            if not isinstance(length, int) or not 0 <= length <= len(self):
                raise RequestError(
                    f"truncate: expected a length from 0 to {len(self)}, found {length!r}"
                )
            self._sequence.truncate(length)

    def reset(self) -> None:
        """Forget all tokens; full blocks stay findable as cached prefixes."""
        self.truncate(0)

    # -- machinery -------------------------------------------------------------------------

    @contextmanager
    def _entered(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise SessionBusyError(
                "this session is at work in another thread: give each thread a session of its own"
            )
        try:
            yield
        finally:
            self._busy.release()

    def _check(self, ids: list[int]) -> None:
        for token in ids:
            if isinstance(token, bool) or not hasattr(token, "__index__"):
                raise RequestError(f"token ids: expected integers, found {token!r}")
        if not ids:
            raise RequestError("no token ids: give at least one, so that there are logits")
        check_ids(ids, self._runner.program.vocab_size, len(self))
        if len(self) + len(ids) > self.context_limit:
            raise RequestError(
                f"{len(ids)} tokens after the {len(self)} already there make {len(self) + len(ids)}: "
                f"the context limit is {self.context_limit} tokens; nothing was cut or computed"
            )

    def _extend(self, ids: list[int], chunk: int | None) -> "numpy.ndarray":
        sequence, runner = self._sequence, self._runner
        before = len(sequence.tokens)
        chunk = min(chunk or runner.max_tokens, runner.max_tokens)
        sequence.tokens.extend(ids)
        try:
            if not sequence.blocks:
                sequence.adopt_prefix()
            sequence.reserve(len(sequence.tokens) - sequence.computed)
            while True:
                # Another thread may take its turn between two chunks, not within one.
                with runner:
                    length = min(chunk, len(sequence.tokens) - sequence.computed)
                    last = sequence.computed + length == len(sequence.tokens)
                    wants = "last" if last else "none"
                    runner.run([(sequence, sequence.computed, length, wants)])
                    sequence.advance(length)
                    if last:
                        return runner.logits(0).copy()
        except BaseException:
            sequence.truncate(before)
            raise
