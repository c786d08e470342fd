"""What the machine can do: bytes read and multiply-adds per second, by the kernels' own threads.

A limit is the best of many short passes, made at several moments: what the machine can do, not what
it did while others used it. Memory and arithmetic can overlap, so the least time for a piece of
work is the longer one of the two (the roofline model).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel.runtime import native_ops

if TYPE_CHECKING:
    import numpy

    from kestrel._ops import CpuDevice

__all__ = ["LARGEST", "Floor", "MachineLimits", "fastest", "roofline"]

#: One pass: how much was done, and the seconds that it took.
Pass = Callable[[], tuple[float, float]]

#: Bytes beyond which no cache of a processor that we know of helps.
LARGEST = 512 << 20

#: A pass reads at least so much, or does so many rounds of multiply-adds: a millisecond or a few.
#: Short ones, so that some of them are not interrupted on a busy machine.
_PASS_BYTES, _PASS_ROUNDS = 16 << 20, 200_000
_LEAST_PASSES = 3


@dataclass(frozen=True)
class Floor:
    """The least seconds that the machine needs for some work, and which of its limits says so.

    Attributes:
        bound: ``bytes`` or ``arithmetic``.
        amount: bytes, or floating-point operations.
        seconds: what they take at the limit.
    """

    bound: str
    amount: float
    seconds: float

    @property
    def unit(self) -> str:
        """Of a rate: ``GB/s`` or ``GFLOP/s``."""
        return "GB/s" if self.bound == "bytes" else "GFLOP/s"

    def rate(self, seconds: float) -> float:
        """In `unit`, where the work takes ``seconds``."""
        return self.amount / seconds / 1e9


class MachineLimits:
    """The limits of a device's threads and instruction set.

    Every method measures for ``seconds`` more and gives the best so far; what was never measured
    takes three passes, however short the time.
    """

    def __init__(self, device: "CpuDevice") -> None:
        self._device = device
        self._ops = native_ops()
        self._best: dict[object, float] = {}  # the highest rate so far

    def read(self, nbytes: float, seconds: float) -> float:
        """Bytes per second of reading as many bytes (at most `LARGEST`) over and over.

        Large pages where the system gives them: a mapped file has small ones and may be slower.
        """
        lines = max(1, min(int(nbytes), LARGEST) // 64)
        data = _buffer(64 * lines)
        rounds = max(1, _PASS_BYTES // len(data))

        def one_pass() -> tuple[float, float]:
            taken, _ = self._ops.limit_read(self._device, data, rounds)
            return rounds * len(data), taken

        return self._measure(lines, one_pass, seconds)

    def arithmetic(self, seconds: float) -> float:
        """float32 operations per second, two a fused multiply-add, out of registers."""

        def one_pass() -> tuple[float, float]:
            taken, count = self._ops.limit_fma(self._device, _PASS_ROUNDS)
            return 2.0 * count, taken

        return self._measure("arithmetic", one_pass, seconds)

    def floor(self, nbytes: float, flops: float, footprint: float, seconds: float = 0.0) -> Floor:
        """See `roofline`. ``footprint``: bytes over which the work goes round before it meets the
        same ones again, which decides the cache that they come from."""
        bandwidth = self.read(footprint, seconds) if nbytes else 1.0
        peak = self.arithmetic(seconds) if flops else 1.0
        return roofline(nbytes, flops, bandwidth, peak)

    def _measure(self, key: object, one_pass: Pass, seconds: float) -> float:
        passes = 0 if key in self._best else _LEAST_PASSES
        found = fastest(one_pass, passes, seconds)
        self._best[key] = max(found, self._best.get(key, 0.0))
        return self._best[key]


def roofline(nbytes: float, flops: float, bandwidth: float, peak: float) -> Floor:
    """The floor of some work at so many bytes and operations per second."""
    floors = (
        Floor("bytes", nbytes, nbytes / bandwidth),
        Floor("arithmetic", flops, flops / peak),
    )
    return max(floors, key=lambda floor: floor.seconds)


def fastest(one_pass: Pass, passes: int, seconds: float) -> float:
    """The highest rate of at least ``passes`` passes, and of more until ``seconds`` are over."""
    best, end = 0.0, time.perf_counter() + seconds
    while passes > 0 or time.perf_counter() < end:
        amount, taken = one_pass()
        best, passes = max(best, amount / taken), passes - 1
    return best


_memory: "numpy.ndarray | None" = None


def _buffer(nbytes: int) -> "numpy.ndarray":
    """uint8 [nbytes], aligned to a cache line, every page of it written; shared by all."""
    global _memory
    import numpy

    if _memory is None or len(_memory) < nbytes:
        _memory = None
        memory = numpy.ones(nbytes + 64, numpy.uint8)
        _memory = memory[-memory.ctypes.data % 64 :][:nbytes]
    return _memory[:nbytes]
