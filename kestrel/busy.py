"""How much of the machine others used while something was measured."""

from __future__ import annotations

import os
import time

__all__ = ["Clock"]


class Clock:
    """Processor time since the clock was made or asked last."""

    def __init__(self) -> None:
        self._mark = self._now()

    def others(self) -> float | None:
        """Processors that others kept busy since the last look; None where nobody tells."""
        before, self._mark = self._mark, self._now()
        if before is None:
            return None
        wall, busy, own = (b - a for a, b in zip(before, self._mark))
        return max(0.0, busy - own) / wall if wall > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            with open("/proc/stat", encoding="ascii") as file:
                fields = file.readline().split()
        except OSError:
            return None  # no Linux
        if len(fields) < 9:
            return None
        # user nice system idle iowait irq softirq steal, in ticks of all processors
        ticks = [int(field) for field in fields[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, sum(os.times()[:4])
