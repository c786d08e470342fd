"""The memory plan: lifetimes become arena offsets, hazards become barriers.

A value lives from its first write to its last read. A command needs a barrier before it when it
reads a range written, or writes a range touched, since the last barrier: between two barriers the
threads of a backend may run commands in any interleaving.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kestrel.program.program import Program
from kestrel.program.values import Storage, Value

__all__ = ["ALIGNMENT", "Plan", "plan"]

#: Bytes: a cache line, so that two values never share one between threads.
ALIGNMENT = 64


@dataclass(frozen=True)
class Plan:
    """Arena offsets in bytes by ``id(value)``; for each command, whether threads meet before it."""

    arena_bytes: int
    offsets: Mapping[int, int]
    barriers: tuple[bool, ...]


def plan(program: Program) -> Plan:
    """Place every scratch value of ``program`` in one arena, and find the barriers it needs."""
    offsets, arena_bytes = _place(program)
    return Plan(arena_bytes, offsets, _barriers(program, offsets))


def _scratch(values: list[Value]) -> list[Value]:
    return [value for value in values if value.storage is Storage.SCRATCH]


def _place(program: Program) -> tuple[dict[int, int], int]:
    last_use: dict[int, int] = {}
    for index, command in enumerate(program.commands):
        for value in _scratch([*command.reads(), *command.outputs]):
            last_use[id(value)] = index
    sizes = dict(program.maxima)
    offsets: dict[int, int] = {}
    live: list[tuple[int, int, int]] = []  # (offset, end, last use), ordered by offset
    arena_bytes = 0
    for index, command in enumerate(program.commands):
        live = [entry for entry in live if entry[2] >= index]
        for value in _scratch(list(command.outputs)):
            nbytes = -(-value.nbytes(sizes) // ALIGNMENT) * ALIGNMENT
            offset = _first_gap(live, nbytes)
            offsets[id(value)] = offset
            live.append((offset, offset + nbytes, last_use[id(value)]))
            live.sort()
            arena_bytes = max(arena_bytes, offset + nbytes)
    return offsets, arena_bytes


def _first_gap(live: list[tuple[int, int, int]], nbytes: int) -> int:
    offset = 0
    for start, end, _ in live:
        if start - offset >= nbytes:
            break
        offset = max(offset, end)
    return offset


def _barriers(program: Program, offsets: Mapping[int, int]) -> tuple[bool, ...]:
    sizes = dict(program.maxima)

    def span(value: Value) -> tuple[object, int, int]:
        """(memory, start, end) of a value; values outside the arena are memories of their own."""
        if value.storage is Storage.SCRATCH:
            start = offsets[id(value)]
            return "arena", start, start + value.nbytes(sizes)
        return id(value), 0, 1

    written: list[tuple[object, int, int]] = []
    read: list[tuple[object, int, int]] = []
    barriers = []
    for command in program.commands:
        reads = [span(v) for v in command.reads() if v.storage not in _CONSTANT]
        writes = [span(v) for v in command.outputs]
        hazard = _overlap(reads, written) or _overlap(writes, written) or _overlap(writes, read)
        if hazard:
            written, read = [], []
        barriers.append(hazard)
        written += writes
        read += reads
    return tuple(barriers)


_CONSTANT = (Storage.INPUT, Storage.WEIGHT)


def _overlap(left: list[tuple[object, int, int]], right: list[tuple[object, int, int]]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in left for b in right)
