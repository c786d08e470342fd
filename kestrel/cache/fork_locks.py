"""Locks across fork(): one that another thread holds at that moment would stay locked in the child
for ever, so the thread that forks takes them all first."""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["free_after_fork"]

_LOCKS: "weakref.WeakValueDictionary[int, threading.RLock]" = weakref.WeakValueDictionary()
_fork_lock = threading.Lock()
_held: list[threading.RLock] = []


def free_after_fork(lock: threading.RLock) -> threading.RLock:
    """The lock, which from now on is free in a forked child, and what it guards is whole."""
    _LOCKS[id(lock)] = lock
    return lock


def _before_fork() -> None:
    _fork_lock.acquire()
    for reference in _LOCKS.valuerefs():
        lock = reference()
        if lock is not None:
            lock.acquire()
            _held.append(lock)


def _after_fork() -> None:
    for lock in _held:
        lock.release()
    _held.clear()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
