"""The machine's limits, measured with limits.c: what the figures of the suite are shares of.

A limit is the best of some passes: what the machine can do, not what it did while others used it.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

__all__ = ["QUICK", "fma_peak", "read_bandwidth", "size_class"]

#: Few rounds, small models: for CI, which wants to know that the suite runs and its results agree.
QUICK = os.environ.get("KESTREL_BENCHMARK_QUICK", "") not in ("", "0")

#: Instruction set -> (bytes of a vector register, compiler flags). Scalar: what any compiler makes
#: of plain C on x86-64, four floats at a time without fused multiply-add.
_TARGETS = {
    "avx512": (64, ["-mavx512f", "-mfma"]),
    "avx2": (32, ["-mavx2", "-mfma"]),
    "neon": (16, []),
    "scalar": (16, []),
}
#: Passes are short and many, so that some of them are not interrupted on a busy machine.
_PASSES = 100
_SECONDS = 0.15 if QUICK else 0.3  # for all of them, unless that is less than 3
_PASS_BYTES = 16 << 20
#: Beyond this no cache of a processor that we know of helps.
_LARGEST = (128 if QUICK else 512) << 20
_SHORTEST: dict[tuple, float] = {}


@lru_cache(maxsize=None)
def _library(isa: str) -> ctypes.CDLL:
    width, flags = _TARGETS[isa]
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler (cc, gcc, clang): the limits cannot be measured")
    source = Path(__file__).with_name("limits.c")
    command = [compiler, "-O3", "-std=gnu11", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread"]
    with tempfile.TemporaryDirectory(prefix="kestrel-limits-") as folder:
        target = Path(folder) / "limits.so"
        subprocess.run([*command, f"-DWIDTH={width}", *flags, "-o", target, source], check=True)
        library = ctypes.CDLL(str(target))  # once loaded, the file may go
    for name in ("kst_read_seconds", "kst_fma_seconds", "kst_fma_count"):
        getattr(library, name).restype = ctypes.c_double
    rounds, threads = ctypes.c_long, ctypes.c_int
    library.kst_read_seconds.argtypes = [ctypes.c_void_p, ctypes.c_size_t, rounds, threads]
    library.kst_fma_seconds.argtypes = library.kst_fma_count.argtypes = [rounds, threads]
    return library


def size_class(nbytes: float) -> int:
    """The next power of two from 64 KiB on: one measurement serves a class."""
    size = 64 << 10
    while size < min(nbytes, _LARGEST):
        size *= 2
    return size


def read_bandwidth(nbytes: float, threads: int, isa: str, more: bool = True) -> float:
    """Bytes per second of reading, over and over, as many bytes as ``nbytes``'s class has.

    Large pages where the system gives them; a mapped file has small ones and may be slower.
    ``more=False`` measures nothing anew where there is a measurement.
    """
    size = size_class(nbytes)
    rounds = max(1, _PASS_BYTES // size)
    read, data = _library(isa).kst_read_seconds, _buffer().ctypes.data
    best = _best(("read", size, threads, isa), lambda: read(data, size, rounds, threads), more)
    return rounds * size / best


def fma_peak(threads: int, isa: str, more: bool = True) -> float:
    """float32 operations per second, two a fused multiply-add, out of registers; ``more``: as
    above."""
    library, rounds = _library(isa), 200_000
    best = _best(("fma", threads, isa), lambda: library.kst_fma_seconds(rounds, threads), more)
    return library.kst_fma_count(rounds, threads) / best


@lru_cache(maxsize=None)
def _buffer() -> np.ndarray:
    return np.ones(_LARGEST, dtype=np.uint8)  # ones: written, so every page is really there


def _best(key: tuple, one_pass: Callable[[], float], more: bool) -> float:
    """The shortest pass so far, in seconds: many passes at first, some whenever asked again.

    They are spread over the run because another process may take the machine for a while.
    """
    found = _SHORTEST.get(key, math.inf)
    if not more and key in _SHORTEST:
        return found
    budget = _SECONDS if key not in _SHORTEST else _SECONDS / 6
    passes, spent = 0, 0.0
    while passes < 3 or (passes < _PASSES and spent < budget):
        seconds = one_pass()
        found, spent, passes = min(found, seconds), spent + seconds, passes + 1
    _SHORTEST[key] = found
    return found
