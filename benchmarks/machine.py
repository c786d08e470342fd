"""What the figures were measured on, and how much of it others used meanwhile."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

from kestrel.busy import Clock

__all__ = ["Clock", "cache_bytes", "report", "report_lines"]

_CPU = Path("/sys/devices/system/cpu/cpu0")
_ROOT = Path(__file__).resolve().parent.parent


def report() -> dict[str, object]:
    """Facts for pytest-benchmark's machine_info: processor, settings, versions, commit."""
    import numpy

    from kestrel import __file__ as package
    from kestrel import __version__
    from kestrel.processors import processor_name, processors
    from kestrel.runtime import native_ops, settings

    granted, asked, ops = processors(), settings(), native_ops()
    return {
        "processor": processor_name(),
        "processors": str(granted),
        "threads": asked.threads or granted.threads,
        "isa": asked.isa or best_isa(),
        "isas": ops.isas(),
        "largest_cache_bytes": cache_bytes(),
        "governor": _read(_CPU / "cpufreq/scaling_governor") or "unknown",
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "kestrel": __version__,
        "kestrel_folder": str(Path(package).parent),
        "kestrel_build": ops.build_info(),
        "kestrel_commit": _commit(),
    }


def report_lines(facts: dict[str, object]) -> list[str]:
    """The facts in words."""
    return [
        f"{facts['processor']}: {facts['processors']}, last cache "
        f"{facts['largest_cache_bytes'] >> 20} MiB, governor {facts['governor']}",
        f"kestrel {facts['kestrel']} at {facts['kestrel_commit']}: {facts['threads']} threads, "
        f"{facts['isa']} of {', '.join(facts['isas'])}",
    ]


def best_isa() -> str:
    """The instruction set that the cpu backend takes by itself."""
    from kestrel.backends import open_backend

    backend = open_backend("cpu", threads=1)
    try:
        return backend.info.isa
    finally:
        backend.close()


def cache_bytes() -> int:
    """Size of the largest cache as the system tells it; 0 where it does not. The sizes of a guest
    need not be those of its host."""
    sizes = [_bytes(_read(index / "size")) for index in _CPU.glob("cache/index*")]
    return max(sizes, default=0)


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(_ROOT), *arguments]
        try:
            found = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return found.stdout.strip() if found.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown commit"
    return commit + " with changes" * bool(git("status", "--porcelain", "--untracked-files=no"))


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
