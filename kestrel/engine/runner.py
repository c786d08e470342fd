"""Runner: one compiled program over the shared cache, one step at a time, threads taking turns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence as AbstractSequence
from typing import TYPE_CHECKING

from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.engine.step import Row, StepArrays, StepLimits, StepShape, fill
from kestrel.engine.turns import Turns
from kestrel.errors import BackendError, KestrelError, NumericalError
from kestrel.program.values import Dim

if TYPE_CHECKING:
    import threading

    import numpy

    from kestrel.backends.base import Executable
    from kestrel.cache.block_pool import BlockPool
    from kestrel.program.program import Program

__all__ = ["Runner"]

_RUNNERS: "weakref.WeakSet[Runner]" = weakref.WeakSet()


class Runner:
    """Submits steps of one program. Every session and engine of a model shares one.

    Attributes:
        turns: shared by all programs on the device; after ``turns.close`` steps raise BackendError.
    """

    def __init__(
        self, program: "Program", executable: "Executable", pool: "BlockPool", max_context: int,
        turns: Turns | None = None,
    ) -> None:  # fmt: skip
        self.program = program
        self.executable = executable
        self.max_tokens = program.maxima[Dim.TOKENS]
        self.max_seqs = program.maxima[Dim.SEQUENCES]
        self.max_logit_rows = program.maxima[Dim.LOGIT_ROWS]
        self.max_context = max_context
        self.step_count = 0
        self.turns = turns or Turns()
        self._limits = StepLimits(program.vocab_size, max_context, pool.num_blocks * BLOCK_SIZE)
        self._arrays = StepArrays(executable.inputs)
        self._greedy = memoryview(executable.greedy)
        _RUNNERS.add(self)

    @property
    def turn(self) -> "threading.RLock":
        """A thread computes inside ``with runner.turn:`` and waits there while another's step runs.

        The outputs of its step last until the end of the block. It is the lock itself, because
        Ctrl-C can fall between the lines of an ``__enter__`` written in Python. Raises
        SessionBusyError to the thread that has the turn already: see ``Turns.lock``.
        """
        return self.turns.lock

    def run(self, rows: AbstractSequence[Row]) -> StepShape:
        """Compute the rows. Only inside a turn.

        The caller then advances the sequences; when this raises, it does not, and the positions
        are computed again.
        """
        executable, turns = self.executable, self.turns
        turns.check_open()
        shape = fill(self._arrays, rows, self._limits)
        try:
            turns.running = executable
            executable.submit(*shape)
            executable.wait()
        except BaseException as error:
            executable.cancel()  # Ctrl-C between the two calls leaves a step announced
            if turns.closed and isinstance(error, KestrelError):
                raise BackendError("the model was closed in the middle of this step") from error
            raise
        finally:
            turns.end_step()
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
        token = self._greedy[row]
        if token < 0:
            raise NumericalError(
                f"step {self.step_count}, logit row {row}: logits are NaN or infinite; "
                "KESTREL_EAGER=1 runs command by command and names the first stage that fails"
            )
        return token


def _in_forked_child() -> None:
    for runner in _RUNNERS:
        runner.turns.forget()
        runner.executable.cancel()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
