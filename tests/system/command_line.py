"""Run the program as users do: a process of its own, with real pipes, signals and terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

__all__ = ["CASTLE", "CASTLE_IDS", "CASTLE_TEXT", "on_a_terminal", "run", "start"]

#: The demo model's greedy answer as transformers gives it (from the model's card; the smallest gap
#: between the best and the second logit over these positions is 0.11).
CASTLE = "In the middle of the forest stood a castle;"
CASTLE_IDS = [0, 1326, 261, 2373, 283, 261, 1536, 990, 260, 1820, 28]
CASTLE_TEXT = " and in the midst of the castle was a beautiful castle"


def start(*arguments: object, **options: object) -> "subprocess.Popen[bytes]":
    """``python -m kestrel ARGUMENTS``, the package under test; ``options`` are Popen's."""
    import kestrel

    package = str(Path(kestrel.__file__).resolve().parent.parent)
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("KESTREL_")},
        "PYTHONPATH": package,
        **options.pop("environment", {}),
    }
    command = [sys.executable, "-m", "kestrel", *map(str, arguments)]
    streams = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    return subprocess.Popen(command, env=environment, **{**streams, **options})


def run(
    *arguments: object, stdin: bytes = b"", status: int = 0, **options: object
) -> tuple[str, str]:
    """What the process wrote to standard output and error; it must end with ``status``."""
    with start(*arguments, **options) as process:
        out, err = process.communicate(stdin, timeout=300)
    assert process.returncode == status, (process.returncode, out, err)
    return (out or b"").decode(), (err or b"").decode()


def on_a_terminal(stream: str, *arguments: object, **environment: str) -> str:
    """What the program writes to ``stream``, a terminal of 100 columns; it must end with 0."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with start(*arguments, environment=environment, **{stream: terminal}) as process:
        os.close(terminal)
        pieces = []
        try:
            while piece := os.read(controller, 65536):
                pieces.append(piece)
        except OSError:  # Linux: the other side was closed
            pass
        process.communicate(timeout=60)
    os.close(controller)
    assert process.returncode == 0
    return b"".join(pieces).decode().replace("\r\n", "\n")
