"""Runner: one compiled program over the shared cache, one step at a time, threads taking turns."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.engine.step import StepLimits, StepShape, WantsLogits, fill
from kestrel.errors import NumericalError

if TYPE_CHECKING:
    import numpy

    from kestrel.backends.base import Executable
    from kestrel.cache.block_pool import BlockPool
    from kestrel.cache.sequence import Sequence
    from kestrel.program.program import Program

__all__ = ["Runner"]

_RUNNERS: "weakref.WeakSet[Runner]" = weakref.WeakSet()


class Runner:
    """Submits steps of one program. ``with runner:`` is a turn; its outputs last until its end.

    Every session and engine of a model shares one, so a thread waits while another's step runs.
    """

    def __init__(
        self, program: "Program", executable: "Executable", pool: "BlockPool", max_context: int
    ) -> None:
        self.program = program
        self.executable = executable
        self.max_tokens, self.max_seqs, self.max_logit_rows = program.maxima.values()
        self.max_context = max_context
        self.step_count = 0
        self._limits = StepLimits(program.vocab_size, max_context, pool.num_blocks * BLOCK_SIZE)
        self._lock = threading.Lock()
        _RUNNERS.add(self)

    def __enter__(self) -> "Runner":
        self._lock.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def run(self, rows: Iterable[tuple["Sequence", int, int, WantsLogits]]) -> StepShape:
        """Compute the rows (see ``engine.step.Row``). Only inside a turn.

        The caller then advances the sequences; when this raises, it does not, and the positions
        are computed again.
        """
        executable = self.executable
        shape = fill(executable.inputs, rows, self._limits)
        executable.submit(*shape)
        executable.wait()
        self.step_count += 1
        return shape

    def logits(self, row: int) -> "numpy.ndarray":
        """float32 [V] of one logit row of this turn's step; copy it to keep it.

        Raises NumericalError when they are not finite.
        """
        self.greedy(row)
        return self.executable.logits[row]

    def greedy(self, row: int) -> int:
        """The lowest id of the largest logit of one row. Raises NumericalError as ``logits``."""
        token = int(self.executable.greedy[row])
        if token < 0:
            raise NumericalError(
                f"step {self.step_count}, logit row {row}: logits are not finite (NaN or infinity); "
                "set KESTREL_EAGER=1 to run command by command and name the first stage that fails"
            )
        return token


def _fresh_locks() -> None:
    # A lock that another thread held at the fork would never be released in the child.
    for runner in _RUNNERS:
        runner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_locks)
