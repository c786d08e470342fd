"""Run a command, and turn what goes wrong into one line and an exit status.

Little is imported before Ctrl-C is ours, and nothing that the command does not need: ``--help`` and
a wrong option cost no more than the parser.
"""

from __future__ import annotations

import _signal as signal  # without its enums, which take most of the time until Ctrl-C is ours
import os
import sys
import warnings
from importlib import import_module

TYPE_CHECKING = False  # see kestrel/__init__.py
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with ``argv`` (default: the process's arguments); the exit status.

    0 success, 1 a difference found, 2 wrong input, 3 the environment does not allow it, 70 an
    error of ours (with its traceback), 130 interrupted, 141 the reader closed the output.
    """
    interrupt = _Interrupt()
    debug = False
    try:
        interrupt.install()
        if "numpy" not in sys.modules:
            # Ours is the arithmetic of the cpu backend: NumPy's BLAS need start no threads, which
            # takes as long as a small model's answer, and raises SIGINT where they do not fit.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        _open_closed_streams()
        # A character that the terminal's encoding lacks is shown by its number, not an exception.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        with interrupt:
            import_module("kestrel.cli.failures")  # while there is memory left to import it
            from kestrel.cli.arguments import parse
        try:
            args = parse(sys.argv[1:] if argv is None else list(argv))
            debug = args.debug
            with warnings.catch_warnings():
                # Ours are shown whatever PYTHONWARNINGS says: errors would stop the program.
                warnings.filterwarnings("always", module=r"kestrel\b")
                warnings.showwarning = _show_warning
                with interrupt:
                    command = import_module(f"kestrel.cli.{args.command}")
                status = command.run(args)
        except SystemExit as exit_:  # argparse: --help, --version, a wrong option
            status = exit_.code if isinstance(exit_.code, int) else 2
        sys.stdout.flush()
        return status
    except BaseException as error:
        # After Ctrl-C any error is its consequence, whatever a library has made of it.
        cause = KeyboardInterrupt() if interrupt.came else error
        try:
            from kestrel.cli.failures import report

            return report(cause.with_traceback(error.__traceback__), debug)
        except MemoryError:
            sys.stderr.write("kestrel: error: out of memory\n")
            return 3
    finally:
        interrupt.restore()


class _Interrupt:
    """The handler of SIGINT: the first Ctrl-C ends the program; while that is reported a second one
    does nothing.

    In a ``with`` block it is held back until the end: an import may turn a KeyboardInterrupt into
    an ImportError, or lose it.

    Attributes:
        came: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.came = False
        self._held = False

    def __call__(self, number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.came = True
        if not self._held:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self._held = True

    def __exit__(self, *exception: object) -> None:
        self._held = False
        if self.came:
            raise KeyboardInterrupt

    def install(self) -> None:
        """Take the place of Python's own handler; of no other, and in the main thread only."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, self)
            except ValueError:  # another thread calls main: signals are not for it
                pass

    def restore(self) -> None:
        """Python's own handler again, unless Ctrl-C came: then the process is about to end."""
        if signal.getsignal(signal.SIGINT) is self:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"kestrel: warning: {message}", file=sys.stderr)


def _open_closed_streams() -> None:
    """Give a process that was started with closed streams (``>&-``) stand-ins.

    That of standard input cannot be read, so that it is told from an empty one, and that of
    standard output not written to, so that no result is lost without a word.
    """
    for name, mode in (("stdin", "w"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
