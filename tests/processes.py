"""Run Python code in a process of its own: signals, forks, exits and memory are tested for real."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["resident_bytes", "run_python"]

TESTS = Path(__file__).resolve().parent


def run_python(
    code: str, timeout: float = 300, status: int = 0, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """Run ``code`` and return what it printed; it must end with ``status``.

    It can import what the tests can. ``environment`` is added to this process's.
    """
    import kestrel

    package = Path(kestrel.__file__).resolve().parent.parent
    path = os.pathsep.join([str(package), str(TESTS), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    return result


def resident_bytes() -> int:
    """Resident memory of this process, files and shared pages included (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
