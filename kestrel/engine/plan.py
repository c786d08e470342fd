"""What one step computes."""

from __future__ import annotations

from typing import NamedTuple

from kestrel.engine.request import Request
from kestrel.engine.step import Row, WantsLogits

__all__ = ["Chunk", "StepPlan"]


class Chunk(NamedTuple):
    """Positions ``start`` to ``start + length`` of a request."""

    request: Request
    start: int
    length: int
    wants_logits: WantsLogits


class StepPlan:
    """What one step computes; no chunks if all that was left to do was to end requests."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks

    def rows(self) -> list[Row]:
        """The chunks as `kestrel.engine.step.fill` takes them, in the same order."""
        return [(r.sequence, start, length, wants) for r, start, length, wants in self.chunks]
