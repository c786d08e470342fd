"""How many threads this process should use: affinity, cgroup quota, whole and fast cores.

More runnable threads than granted processors make every barrier wait for a thread that is not
running: a container limited to 2 of 16 processors then computes tens of times slower.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from kestrel.integers import counted

__all__ = [
    "Processors",
    "cgroup_quota",
    "fast_cores",
    "parse_cpu_list",
    "processor_name",
    "processors",
]

#: A processor below this share of the fastest one's capacity (arm64 Linux) is an efficiency core.
_FAST_SHARE = 0.5


@dataclass(frozen=True)
class Processors:
    """The processors that the system grants, and the thread count that follows.

    Attributes:
        present: logical processors of the machine.
        allowed: logical processors in this process's affinity mask.
        cores: physical performance cores among the allowed processors.
        quota: processors' worth of time that the control groups grant, or None for no limit.
    """

    present: int
    allowed: int
    cores: int
    quota: float | None

    @property
    def threads(self) -> int:
        """The default thread count: the cores, at most the quota rounded down, at least 1."""
        limit = self.cores if self.quota is None else min(self.cores, int(self.quota))
        return max(1, limit)

    def __str__(self) -> str:
        quota = "no quota" if self.quota is None else f"a quota of {self.quota:g}"
        return (
            f"{counted(self.threads, 'thread')} ({counted(self.present, 'processor')}, "
            f"{self.allowed} allowed, {counted(self.cores, 'performance core')}, {quota})"
        )


def processors(root: Path = Path("/")) -> Processors:
    """Look at the machine. ``root`` stands for the file system that holds /proc and /sys."""
    present = os.cpu_count() or 1
    if sys.platform == "darwin":
        return Processors(present, present, _macos_performance_cores() or present, None)
    if hasattr(os, "sched_getaffinity"):
        allowed = frozenset(os.sched_getaffinity(0))
    else:
        allowed = frozenset(range(present))
    return Processors(present, len(allowed), fast_cores(allowed, root), cgroup_quota(root))


def fast_cores(allowed: frozenset[int], root: Path = Path("/")) -> int:
    """Physical performance cores among the ``allowed`` logical processors; at least 1."""
    devices = root / "sys/devices"
    fast = allowed & parse_cpu_list(_text(devices / "cpu_core/cpus"))  # hybrid x86-64
    if not fast:
        capacity = {cpu: _number(devices / f"system/cpu/cpu{cpu}/cpu_capacity") for cpu in allowed}
        floor = _FAST_SHARE * max(capacity.values(), default=0)
        fast = frozenset(cpu for cpu in allowed if capacity[cpu] >= floor)
    # Processors that share a core name the same siblings; one that names none is a core itself.
    cores = {
        _text(devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in fast
    }
    return max(1, len(cores))


def cgroup_quota(root: Path = Path("/")) -> float | None:
    """The smallest processor quota of this process's control groups, versions 1 and 2.

    Every group up to the mount's root counts, as the kernel throttles at each level. Returns
    processors' worth of time (quota / period), or None where nothing limits it.
    """
    quotas = []
    groups = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines()]
    for mount in _text(root / "proc/self/mountinfo").splitlines():
        # proc_pid_mountinfo(5): "id parent device root point ... - type source options"
        head, _, tail = mount.partition(" - ")
        fields, kind = head.split(), tail.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        for group in groups:
            if len(group) != 3 or not _belongs(group[1], kind[0], kind[2]):
                continue
            folder = root / fields[4].lstrip("/")
            inner = group[2].removeprefix(fields[3].rstrip("/")).strip("/")
            for part in [".", *_prefixes(inner)]:
                quotas.append(_quota_of(folder / part))
    return min((quota for quota in quotas if quota is not None), default=None)


def _belongs(controllers: str, kind: str, options: str) -> bool:
    """Whether a line of /proc/self/cgroup speaks of a mount that limits processor time."""
    if kind == "cgroup2":
        return controllers == ""
    return kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(",")


def _prefixes(path: str) -> list[str]:
    """``a/b/c`` -> ``a``, ``a/b``, ``a/b/c``; nothing for an empty path or one that goes up."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts:  # the group lies outside our cgroup namespace
        return []
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _quota_of(folder: Path) -> float | None:
    limit = _text(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
    if not limit:
        limit = [_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")]
    try:
        quota, period = int(limit[0]), int(limit[1])
    except (ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def parse_cpu_list(text: str) -> frozenset[int]:
    """``0-2,8`` -> {0, 1, 2, 8}, the kernel's notation; anything else gives the empty set."""
    cpus: set[int] = set()
    try:
        for part in text.strip().split(","):
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
    return frozenset(cpus)


def processor_name(root: Path = Path("/")) -> str:
    """The processor's name as the system gives it, or the architecture's."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return " ".join(value.split())
    return platform.machine()


def _macos_performance_cores() -> int:
    for name in ("hw.perflevel0.physicalcpu", "hw.physicalcpu"):
        if _sysctl(name).isdecimal():
            return int(_sysctl(name))
    return 0


def _sysctl(name: str) -> str:
    import subprocess

    found = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0
