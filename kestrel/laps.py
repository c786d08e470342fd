"""Seconds of a piece of work, part by part."""

from __future__ import annotations

import time

__all__ = ["Laps"]


class Laps:
    """A stopwatch that runs from its construction on.

    Attributes:
        seconds: what each part took, in their order.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """All that has passed since the lap before belongs to ``part``."""
        now = time.perf_counter()
        self.seconds[part] = now - self._last
        self._last = now
