"""A figure: a time, what the machine could have done in it, and a checksum of what was computed."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from limits import floor, floor_now
from machine import Clock

from kestrel.roofline import Floor

__all__ = ["Line", "Measure", "Work", "digest", "summary_lines"]

#: How often the limits are measured between the rounds of a benchmark.
_MOMENTS = 8

#: Unit -> what a number of seconds is multiplied by; a unit "x/s" counts x per second instead.
_TIMES = {"s": 1.0, "ms": 1e3, "us": 1e6}


def digest(parts: Iterable[object]) -> str:
    """SHA-256 over arrays, bytes or texts, in 16 hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            part = np.ascontiguousarray(part)
        total.update(part if not isinstance(part, str) else part.encode())
    return total.hexdigest()[:16]


@dataclass(frozen=True)
class Work:
    """The least that one call has to do.

    Attributes:
        nbytes: bytes that it has to read (or write, where that is more).
        flops: floating-point operations, two a multiply-add.
        footprint: bytes over which calls go round before they meet the same ones again, which
            decides the cache that they come from; None: ``nbytes``.
        threads, isa: whose limits apply.
    """

    threads: int
    isa: str
    nbytes: float = 0.0
    flops: float = 0.0
    footprint: float | None = None

    def limit(self, more: bool = False) -> Floor:
        """The least time by the machine's limits: the longer one of reading and arithmetic.

        ``more`` measures the machine again and keeps the best so far.
        """
        return floor(*self._amounts(), more)

    def limit_now(self) -> Floor:
        """The same, measured at this moment: neighbours take part of what the machine can do."""
        return floor_now(*self._amounts())

    def _amounts(self) -> tuple[float, float, float, int, str]:
        footprint = self.footprint or self.nbytes
        return self.nbytes, self.flops, footprint, self.threads, self.isa


class Line(dict):
    """A figure as the summary and the JSON report have it; `complete` adds the share at the end."""

    def __init__(self, seconds: float, work: Work | None, kept: dict, **facts: object) -> None:
        super().__init__(facts)
        self._seconds, self._work, self._kept = seconds, work, kept

    def complete(self) -> None:
        """Rate, limit and share, once all measurements of the limits have been made."""
        if self._work is None:
            return
        limit = self._work.limit()
        self["rate"] = limit.rate(self._seconds)
        self["rate_unit"] = limit.unit
        self["limit"] = limit.rate(limit.seconds)
        self["share"] = limit.seconds / self._seconds
        self._kept.update(self)


class Measure:
    """Times a call, checks that it gives the same result before and after, keeps the figure."""

    def __init__(self, benchmark, name: str, quick: bool, lines: list[Line]) -> None:
        self._benchmark = benchmark
        self._name = name
        self._quick = quick
        self._lines = lines
        self._others: float | None = None
        self._beside: float | None = None

    def __call__(
        self,
        run: Callable[..., object],
        *,
        result: Callable[[], str],
        count: float,
        unit: str,
        work: Work | None = None,
        setup: Callable[[], object] | None = None,
        rounds: int | None = None,
        budget: float = 1.0,
        note: str = "",
    ) -> float:
        """Time ``run`` and return the median in seconds.

        Args:
            run: what is timed.
            result: its checksum, asked for after the warm-up and after the last round; it must be
                the same.
            count: how many of what ``unit`` counts one run does.
            unit: ``tokens/s`` and the like, or ``s``, ``ms``, ``us`` for the time of one.
            work: what to take the share of the limit from.
            setup: called before each run, not timed; may return (args, kwargs) for it.
            rounds: how often; None: what fits the budget, at least 3 (2 in quick mode).
            budget: seconds for all rounds.
            note: a remark for the summary.
        """
        seconds = self._warm_up(run, setup, budget)
        expected = result()
        if rounds is None:
            fit = (budget / 8 if self._quick else budget) / max(seconds, 1e-9)
            rounds = min(max(int(fit), 2 if self._quick else 3), 200)
        # A round is 1 ms at least, so that the clock costs nothing.
        iterations = 1 if setup else max(1, math.ceil(1e-3 / max(seconds, 1e-9)))
        rounds = max(-(-rounds // iterations), 3)
        floors: list[float] = []  # of each round
        if work is not None and iterations == 1:
            setup = self._with_limits(setup, work, max(1, rounds // _MOMENTS), floors)
        clock = Clock()
        self._benchmark.pedantic(run, setup=setup, rounds=rounds, iterations=iterations)
        self._others = clock.others()
        found = result()
        assert found == expected, f"{self._name}: checksum {expected} first, {found} at the end"
        taken = [seconds]  # --benchmark-disable keeps no times
        if self._benchmark.stats is not None:
            taken = self._benchmark.stats.stats.data
            if floors:
                shares = [least / round_ for least, round_ in zip(floors, taken)]
                self._beside = statistics.median(shares)
        self._keep(self._benchmark.extra_info, "", taken, count, unit, work, expected, note)
        return statistics.median(taken)

    def also(
        self,
        label: str,
        seconds: Sequence[float],
        *,
        result: str,
        count: float,
        unit: str,
        work: Work | None = None,
        note: str = "",
    ) -> None:
        """Keep another figure of the rounds just measured, from times taken inside them."""
        into = self._benchmark.extra_info[label] = {}
        self._keep(into, label, seconds, count, unit, work, result, note)

    def says(self, note: str) -> None:
        """Put a remark beside the last figure, in place of its note."""
        self._lines[-1]["note"] = note
        self._benchmark.extra_info["note"] = note

    @staticmethod
    def _with_limits(setup, work: Work, every: int, floors: list[float]) -> Callable[[], object]:
        """A setup that also measures the limits, before every so many rounds, and keeps for each
        round the least time by the last ones."""

        def measured() -> object:
            now = len(floors) % every == 0
            floors.append(work.limit_now().seconds if now else floors[-1])
            return setup() if setup else None

        return measured

    def _warm_up(self, run, setup, budget: float) -> float:
        """Two runs, one when it takes long; the seconds of the faster."""
        seconds = math.inf
        for _ in range(2):
            args, kwargs = (setup() if setup else None) or ((), {})
            started = time.perf_counter()
            run(*args, **kwargs)
            seconds = min(seconds, time.perf_counter() - started)
            if seconds > budget / 3:
                break
        return seconds

    def _keep(self, into, label, seconds, count, unit, work, checksum, note) -> None:
        def figure(seconds: float) -> float:
            return count / seconds if unit.endswith("/s") else seconds * _TIMES[unit] / count

        median = statistics.median(seconds)
        line = Line(
            median,
            work,
            into,
            name=" ".join(filter(None, (self._name, label))),
            figure=figure(median),
            best=figure(min(seconds)),
            unit=unit,
            checksum=checksum,
            others=self._others,
            beside=None if label else self._beside,
            note=note,
        )
        into.update(line)
        if work is not None:
            work.limit(more=True)
        self._lines.append(line)


def summary_lines(lines: list[Line]) -> Iterable[str]:
    """One line a figure: median, best, rate, its share of the limit and of the one measured beside
    it, others' load, checksum."""
    width = max(len(line["name"]) for line in lines)
    head = f"{'':{width}} {'median':>11} {'best':>11} {'':8} {'rate':>7} {'':7} {'limit':>7}"
    yield f"{head} {'share':>6} {'beside':>6} {'others':>6}  checksum"
    for line in lines:
        cells = f"{'':31}"
        if "rate" in line:
            cells = f"{line['rate']:7.2f} {line['rate_unit']:7} {line['limit']:7.2f} "
            cells += f"{line['share']:6.1%}"
        beside = "" if line["beside"] is None else f"{line['beside']:.1%}"
        others = "" if line["others"] is None else f"{line['others']:.2f}"
        yield (
            f"{line['name']:{width}} {_number(line['figure'])} {_number(line['best'])} "
            f"{line['unit']:8} {cells:31} {beside:>6} {others:>6}  {line['checksum']}  "
            f"{line['note']}"
        ).rstrip()


def _number(value: float) -> str:
    return f"{value:11,.{2 if value < 100 else 1 if value < 10_000 else 0}f}"
