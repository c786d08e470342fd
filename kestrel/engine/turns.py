"""Turns: whose step runs on a model's device, and how a model ends while one does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kestrel.errors import BackendError, SessionBusyError

if TYPE_CHECKING:
    from kestrel.backends.base import Backend, Executable

__all__ = ["Turns"]


class Turns:
    """One for each device; all programs on it share it, as they share its worker threads.

    Attributes:
        running: the executable whose step is under way, else None.
        closed: no step may begin any more.
    """

    def __init__(self) -> None:
        # It is never entered twice. What counts is that it knows its owner from the instant it is
        # taken: an owner noted in Python would be missing when a signal comes before the note.
        self._lock = threading.RLock()
        self.running: "Executable | None" = None
        self.closed = False
        self._closing: "Backend | None" = None

    @property
    def lock(self) -> threading.RLock:
        """To be used by ``with``. Raises SessionBusyError to the thread that has the turn.

        Such a thread is in a signal handler (or a finalizer) that interrupted its own step, which
        cannot go on before the handler returns: to wait for it would be for ever.
        """
        if self._lock._is_owned():  # threading.Condition relies on this method too
            raise SessionBusyError(
                "this thread is inside a step of this model already: a signal handler cannot "
                "compute in the middle of it; let it set a flag, and compute after the step"
            )
        return self._lock

    def close(self, backend: "Backend") -> None:
        """Close the device: now, or when the step ends that this very thread has interrupted."""
        self.closed = True
        running = self.running
        if running is not None and self._lock._is_owned():
            self._closing = backend
            running.cancel()
        else:
            backend.close()

    def check_open(self) -> None:
        """Raise BackendError after ``close``."""
        if self.closed:
            raise BackendError("the model was closed: load it again")

    def end_step(self) -> None:
        """No step is under way any more."""
        self.running = None
        if self._closing is not None:
            closing, self._closing = self._closing, None
            closing.close()

    def forget(self) -> None:
        """In a forked child: a thread inside a turn exists in the parent alone."""
        self._lock = threading.RLock()
        self.running = None
