"""Programs of a few commands of one operation, over arrays that a benchmark fills and reads.

A command is timed as it runs in a model: by the interpreter, with its threads and a barrier between
commands. A program repeats its operation, each time with other weights, so that the weights come
from memory and not from a cache that the last round left warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
from checkpoints import encode  # tests/checkpoints.py

from kestrel.backends import open_backend
from kestrel.cache.paged_cache import BLOCK_SIZE
from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.program.program import Command, Program
from kestrel.program.values import Dim, Storage, Value
from kestrel.runtime import native_ops

__all__ = ["Kernels", "Weights", "kv_cache", "step_input", "value", "vector"]

_SEED = 20_240_817


def value(name: str, *shape: Dim | int, dtype: Dtype = Dtype.F32) -> Value:
    """An array that the benchmark can fill and read: ``Kernels.arrays[name]``."""
    return Value(name, Storage.OUTPUT, dtype, shape)


def step_input(name: str, *shape: Dim | int) -> Value:
    """One of the int32 arrays of StepInputs."""
    return Value(name, Storage.INPUT, Dtype.I32, shape, source=name)


class Weights:
    """Deals out matrices of one dtype from a pool of ``nbytes``, round and round."""

    def __init__(self, dtype: str, nbytes: int) -> None:
        self._dtype = Dtype(dtype)
        self._pool = _pool(dtype, nbytes)
        self._at = 0

    def matrix(self, out_features: int, in_features: int) -> Value:
        """[out, in]; standard normal, so that sums stay far from overflow."""
        shape = (out_features, in_features)
        nbytes = prod(shape) * self._dtype.size
        if self._at + nbytes > len(self._pool):
            self._at = 0
        data = self._pool[self._at : self._at + nbytes]
        self._at += nbytes
        view = TensorView("weight", self._dtype, shape, data, Path("(random)"), 0)
        return Value("weight", Storage.WEIGHT, self._dtype, shape, source=view)


@lru_cache(maxsize=2)
def _pool(dtype: str, nbytes: int) -> memoryview:
    block = np.random.default_rng(_SEED).standard_normal(1 << 20, dtype=np.float32)
    block = np.frombuffer(encode(block, dtype), np.uint8)
    pool = np.resize(block, nbytes)
    pool.flags.writeable = False
    return memoryview(pool)


def vector(width: int) -> Value:
    """float32 [width] near 1, a norm's weight."""
    data = (1 + 0.1 * np.random.default_rng(_SEED).standard_normal(width)).astype(np.float32)
    view = TensorView("norm", Dtype.F32, (width,), memoryview(data).cast("B"), Path("(random)"), 0)
    return Value("norm", Storage.WEIGHT, Dtype.F32, (width,), source=view)


def kv_cache(positions: int, kv_heads: int, head_dim: int, dtype: str) -> Value:
    """One layer's cache for ``positions``, [blocks, 2, K, 16 * D], random keys and values."""
    shape = (-(-positions // BLOCK_SIZE), 2, kv_heads, BLOCK_SIZE * head_dim)
    buffer = native_ops().CpuBuffer(prod(shape) * Dtype(dtype).size)
    memoryview(buffer)[:] = _pool(dtype, buffer.nbytes)
    return Value("cache", Storage.CACHE, Dtype(dtype), shape, source=buffer)


class Kernels:
    """A compiled list of commands on a cpu backend of its own, over arrays filled from a seed.

    The step has ``rows`` tokens of one sequence, the last of them at position ``context`` - 1, and
    as many logit rows. ``arrays`` are those made by `value`, by name.
    """

    def __init__(
        self, commands: Sequence[Command], rows: int, threads: int, isa: str, context: int = 0
    ) -> None:
        context = context or rows
        self._backend = open_backend("cpu", threads=threads, isa=isa)
        self._rows = rows
        outputs = {
            v.name: v
            for command in commands
            for v in (*command.reads(), *command.outputs)
            if v.storage is Storage.OUTPUT
        }
        unused = Value("unused", Storage.OUTPUT, Dtype.I32, (Dim.LOGIT_ROWS,))
        program = Program(
            commands=tuple(commands),
            maxima={Dim.TOKENS: rows, Dim.SEQUENCES: 1, Dim.LOGIT_ROWS: rows},
            max_blocks=-(-context // BLOCK_SIZE),
            vocab_size=1,
            logits=value("unused logits", Dim.LOGIT_ROWS, 1),
            greedy=outputs.pop("greedy", unused),
            taps=outputs,
        )
        self._executable = self._backend.compile(program)
        self.arrays = {**self._executable.taps, "greedy": self._executable.greedy}
        rng = np.random.default_rng(_SEED)
        for name in sorted(set(self.arrays) - {"greedy"}):
            array = self.arrays[name]
            array[...] = rng.standard_normal(array.shape, dtype=np.float32)
        inputs, tokens = self._executable.inputs, np.arange(rows, dtype=np.int32)
        inputs.token_ids[:] = tokens * 7 % 1009
        inputs.positions[:] = context - rows + tokens
        inputs.rope_lengths[:] = context
        inputs.slots[:] = inputs.positions
        inputs.seq_start[:] = 0, rows
        inputs.context_len[:] = context
        inputs.block_table[0] = np.arange(inputs.block_table.shape[1])
        inputs.logit_rows[:] = tokens[::-1]

    def run(self) -> None:
        """All commands, once."""
        self._executable.submit(self._rows, 1, self._rows)
        self._executable.wait()

    def close(self) -> None:
        """End the threads."""
        self._backend.close()
