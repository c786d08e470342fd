"""Where the time of ``kestrel bench`` goes: kernels, threads that wait for each other, the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel.engine.engine import Engine
from kestrel.engine.runner import Runner

if TYPE_CHECKING:
    import numpy

    from kestrel.backends.cpu import CpuExecutable
    from kestrel.model import Model

__all__ = ["Profiler", "Split", "split"]


@dataclass(frozen=True)
class Split:
    """Seconds of some steps.

    Attributes:
        kernels: what a thread computed, on average over the threads.
        barriers: what a thread waited for others from the first command's begin to the last one's
            end, on average: behind the slowest share of each command, and in the gaps.
        host: the rest: Python, and the start and end of the run.
    """

    kernels: float = 0.0
    barriers: float = 0.0
    host: float = 0.0

    def __add__(self, other: "Split") -> "Split":
        return Split(
            self.kernels + other.kernels, self.barriers + other.barriers, self.host + other.host
        )

    def shares(self) -> dict[str, float]:
        """Each part's share of the whole."""
        whole = self.kernels + self.barriers + self.host
        return {name: part / whole for name, part in vars(self).items()}


def split(records: "list[numpy.ndarray]", seconds: float) -> Split:
    """What ``seconds`` went to in which the steps of these records ran.

    A record is int64 [commands, threads, 2], begin and end of each share in nanoseconds.
    """
    kernels = barriers = 0.0
    for record in records:
        begin, end = record[..., 0], record[..., 1]
        whole = float(end.max() - begin.min()) * 1e-9
        busy = float((end - begin).sum()) * 1e-9 / record.shape[1]
        kernels += busy
        barriers += whole - busy
    return Split(kernels, barriers, max(0.0, seconds - kernels - barriers))


class Profiler:
    """An engine's steps with the stamps of each command on each thread.

    Attributes:
        records: of the steps since `engine`, see `split`.
    """

    def __init__(self, model: "Model") -> None:
        self.records: "list[numpy.ndarray]" = []
        self._model = model
        plain = model.runner
        executable = _Profiled(plain.executable, self.records)
        self._runner = Runner(
            plain.program, executable, model.pool, plain.max_context, plain.turns
        )

    def engine(self) -> Engine:
        """As ``Model.engine``."""
        self.records.clear()
        model = self._model
        return Engine(self._runner, model.pool, model.tokenizer, frozenset(model.end_ids))


class _Profiled:
    """An executable of the cpu backend whose steps are profiled."""

    def __init__(self, executable: "CpuExecutable", records: "list[numpy.ndarray]") -> None:
        self.inputs, self.taps = executable.inputs, executable.taps
        self.logits, self.greedy = executable.logits, executable.greedy
        self.submit, self.cancel = executable.submit, executable.cancel
        self._wait, self._records = executable.wait_profiled, records

    def wait(self) -> None:
        """Finish the step, and keep its record."""
        self._records.append(self._wait())
