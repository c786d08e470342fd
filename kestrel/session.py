"""Session: one sequence over a model, step by step."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kestrel.engine.step import check_ids
from kestrel.errors import RequestError, SessionBusyError
from kestrel.integers import counted, integer, token_ids

if TYPE_CHECKING:
    import numpy

    from kestrel.cache.sequence import Sequence
    from kestrel.engine.runner import Runner

__all__ = ["Session"]


class Session:
    """Tokens and their cached keys and values; made by ``Model.session``.

    Many sessions share one model, each used by one thread at a time. The call that makes a Phi-3's
    session longer than the model's original length computes all of it anew, with the long factors,
    as ``generate`` of transformers does. When a call raises, also
    KeyboardInterrupt in the middle of a prefill, the session has the tokens that it had before;
    only one that comes as the call returns can find them appended: ``len(session)`` says.
    """

    def __init__(self, runner: "Runner", sequence: "Sequence") -> None:
        self._runner = runner
        self._sequence = sequence
        self._busy = threading.Lock()
        # The blocks go back to the pool with the session, also when nobody closes it.
        weakref.finalize(self, sequence.release).atexit = False

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
        CapacityError when the cache is full; NumericalError when logits are not finite;
        SessionBusyError when another thread is inside, or in a signal handler that interrupted a
        step of this model.
        """
        ids = token_ids(ids)
        if not ids:
            raise RequestError("no token ids: give at least one, so that there are logits")
        if chunk is not None:
            chunk = integer(chunk, "chunk", 1)
        with self._entered():
            self._check(ids)
            return self._extend(ids, chunk)

    def decode(self, token: int) -> "numpy.ndarray":
        """Append one token and return the logits after it: float32 [V]. Raises as ``prefill``."""
        if type(token) is not int:
            (token,) = token_ids((token,))
        with self._entered():
            sequence, runner = self._sequence, self._runner
            before = len(sequence.tokens)
            if not 0 <= token < runner.program.vocab_size or before >= runner.max_context:
                self._check((token,))
            # As _extend, in the fewest lines: a step sweeps the caches with the model's weights,
            # and then each line that runs waits for memory.
            try:
                sequence.append(token)
                if sequence.computed != before:
                    return self._extend((), None)
                sequence.reserve(1)
                with runner.turn:
                    runner.run(((sequence, before, 1, "last"),))
                    sequence.advance(1)
                    return runner.logits(0).copy()
            except BaseException:
                sequence.truncate(before)
                raise

    def fork(self) -> "Session":
        """A session with the same tokens that shares the cached blocks."""
        with self._entered():
            return Session(self._runner, self._sequence.fork())

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises RequestError outside 0 to len(session).

        Where the model's window has moved on since, or a Phi-3 is back within its original length,
        the next call computes them again.
        """
        with self._entered():
            self._sequence.truncate(integer(length, "truncate: length", 0, len(self)))

    def reset(self) -> None:
        """Forget all tokens; full blocks stay findable as cached prefixes."""
        self.truncate(0)

    def __reduce__(self) -> None:
        raise TypeError("a Session lives in its model's cache: fork() copies it, pickle cannot")

    # -- machinery -------------------------------------------------------------------------

    def _entered(self) -> threading.Lock:
        """The lock to work under. Two threads that come at the same instant do wait, in order.

        Handed out to a ``with``, because Ctrl-C can fall behind an ``acquire`` of our own.
        """
        if self._busy.locked():
            raise SessionBusyError(
                "this session is at work in another thread: give each thread a session of its own"
            )
        return self._busy

    def _check(self, ids: list[int] | tuple[int, ...]) -> None:
        check_ids(ids, self._runner.program.vocab_size, len(self))
        total = len(self) + len(ids)
        if total > self.context_limit:
            raise RequestError(
                f"{counted(len(ids), 'token')} after the {len(self)} already there make {total}: "
                f"the context limit is {self.context_limit} tokens; nothing was cut or computed"
            )

    def _extend(self, ids: list[int] | tuple[int, ...], chunk: int | None) -> "numpy.ndarray":
        sequence, runner = self._sequence, self._runner
        tokens = sequence.tokens
        before = len(tokens)
        chunk = min(chunk or runner.max_tokens, runner.max_tokens)
        try:
            sequence.extend(ids)
            if not sequence.blocks:
                sequence.adopt_prefix()
            left = len(tokens) - sequence.computed
            sequence.reserve(sequence.ahead(left, chunk))
            while True:
                length = sequence.fitting(min(chunk, len(tokens) - sequence.computed))
                sequence.reserve(length)
                is_last = sequence.computed + length == len(tokens)
                # Another thread may take its turn between two chunks, not within one.
                with runner.turn:
                    row = (sequence, sequence.computed, length, "last" if is_last else "none")
                    runner.run((row,))
                    sequence.advance(length)
                    if is_last:
                        return runner.logits(0).copy()
        except BaseException:
            sequence.truncate(before)
            raise
