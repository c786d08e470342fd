"""The machine's limits, what the figures of the suite are shares of: the product's measurement.

A little is measured with every figure, because another process may take the machine for a while.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING

from kestrel.roofline import LARGEST, Floor, MachineLimits
from kestrel.runtime import native_ops

if TYPE_CHECKING:
    from kestrel._ops import CpuDevice

__all__ = ["QUICK", "floor", "floor_now", "size_class"]

#: Few rounds, small models: for CI, which wants to know that the suite runs and its results agree.
QUICK = os.environ.get("KESTREL_BENCHMARK_QUICK", "") not in ("", "0")

_SECONDS = 0.03 if QUICK else 0.1
_LARGEST = (128 << 20) if QUICK else LARGEST


def size_class(nbytes: float) -> int:
    """Up to an eighth more, from 64 KiB on: one measurement serves a class."""
    size = 64 << 10
    while 2 * size < min(nbytes, _LARGEST):
        size *= 2
    eighths = max(8, -(-8 * int(nbytes) // size))
    return min(eighths * size // 8, _LARGEST)


def floor(
    nbytes: float, flops: float, footprint: float, threads: int, isa: str, more: bool
) -> Floor:
    """See ``MachineLimits.floor``; ``more=False`` measures nothing anew where it was measured."""
    seconds = _SECONDS if more else 0.0
    return _limits(threads, isa).floor(nbytes, flops, size_class(footprint), seconds)


def floor_now(nbytes: float, flops: float, footprint: float, threads: int, isa: str) -> Floor:
    """The same by passes made now, whatever was seen before."""
    limits = MachineLimits(_device(threads, isa))
    return limits.floor(nbytes, flops, size_class(footprint), _SECONDS / 5)


@lru_cache(maxsize=None)
def _limits(threads: int, isa: str) -> MachineLimits:
    return MachineLimits(_device(threads, isa))


@lru_cache(maxsize=None)
def _device(threads: int, isa: str) -> "CpuDevice":
    return native_ops().CpuDevice(threads, isa)
