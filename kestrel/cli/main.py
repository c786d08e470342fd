"""Run a command, and turn what goes wrong into one line and an exit status.

Nothing is imported here that the command does not need: ``--help`` and a wrong option cost no more
than the parser.
"""

from __future__ import annotations

import difflib
import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from threading import current_thread, main_thread

__all__ = ["main"]

_INPUT, _ENVIRONMENT, _INTERNAL, _INTERRUPTED, _BROKEN_PIPE = 2, 3, 70, 128 + 2, 128 + 13


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program with ``argv`` (default: the process's arguments); the exit status.

    0 success, 1 a difference found, 2 wrong input, 3 the environment does not allow it, 70 an
    error of ours (with its traceback), 130 interrupted, 141 the reader closed the output.
    """
    _open_closed_streams()
    # A character that the terminal's encoding lacks is shown by its number, not by an exception.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    debug = False
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler and current_thread() is main_thread():
        signal.signal(signal.SIGINT, _interrupt)
    try:
        args = parse(sys.argv[1:] if argv is None else list(argv))
        debug = args.debug
        with warnings.catch_warnings():
            # Ours are shown whatever PYTHONWARNINGS says: as errors they would stop the program.
            warnings.filterwarnings("always", module=r"kestrel\b")
            warnings.showwarning = _show_warning
            status = import_module(f"kestrel.cli.{args.command}").run(args)
        sys.stdout.flush()
        return status
    except SystemExit as exit_:  # argparse: --help, --version, a wrong option
        status = exit_.code if isinstance(exit_.code, int) else _INPUT
        try:
            sys.stdout.flush()
        except OSError as error:
            return _report(error, debug)
        return status
    except BaseException as error:
        return _report(error, debug)
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: object) -> None:
    """The first Ctrl-C ends the program; a second one must not while the first is reported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def parse(argv: list[str]):
    """The arguments as a namespace. Exits like argparse, after saying what was wrong."""
    from kestrel.cli.parser import COMMANDS, get_parser

    parser = get_parser()
    if not argv or argv == ["help"]:
        parser.print_help()
        parser.exit()
    implicit = argv[0] not in (*COMMANDS, "-h", "--help", "--version")
    args, unknown = parser.parse_known_args(["generate", *argv] if implicit else argv)
    if unknown:
        args.parser.error(_unknown(unknown, args))
    if implicit and args.prompt and "--" not in argv:
        _refuse_mistyped(args, COMMANDS)
    return args


def _refuse_mistyped(args, commands) -> None:
    """A single word that is nearly a command, or a model's folder, is hardly meant as a prompt."""
    near = difflib.get_close_matches(args.prompt, commands, n=1, cutoff=0.75)
    if near:
        what = f"{args.prompt!r} is no command: did you mean {near[0]!r}?"
        if near[0] == args.prompt:
            what = f"a command has to be the first argument, found {args.prompt!r} later;"
        args.parser.error(f"{what} For a prompt: kestrel generate -- {args.prompt}")
    if os.path.exists(os.path.join(args.prompt, "config.json")):
        args.parser.error(f"{args.prompt} is a model's folder: name it with --model {args.prompt}")
    if "/" in args.prompt:
        from kestrel.hub import is_cached

        if is_cached(args.prompt):
            args.parser.error(
                f"{args.prompt} is a model in the hub's cache: name it with --model {args.prompt}"
            )


def _unknown(unknown: list[str], args) -> str:
    """The message about arguments that the command's parser has no use for."""
    first = unknown[0]
    if first.startswith("-"):
        name = first.partition("=")[0]
        near = difflib.get_close_matches(name, args.parser._option_string_actions, n=1)
        hint = f"did you mean {near[0]}?" if near else f"see kestrel {args.command} --help"
        return f"unknown option {name}: {hint}"
    taken = getattr(args, "prompt", None) or getattr(args, "model", None)
    kind = "prompt" if args.command == "generate" else "argument"
    if taken is None:
        return f"expected no {kind} here, found {first!r}"
    return f"expected one {kind}, found {taken!r} and {first!r}: quote it if it has spaces"


def _report(error: BaseException, debug: bool) -> int:
    """Print what happened to standard error and choose the exit status."""
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return _BROKEN_PIPE
    status, message = _classify(error)
    try:
        sys.stdout.flush()  # what was written before the error comes before the message
    except OSError as full:
        _discard_output()
        if isinstance(full, BrokenPipeError):
            return _BROKEN_PIPE
    try:
        if debug or status == _INTERNAL:
            traceback.print_exception(type(error), error, error.__traceback__)
        print(f"kestrel: {message}", file=sys.stderr, flush=True)
    except OSError:
        _discard_output()
    return status


def _classify(error: BaseException) -> tuple[int, str]:
    from kestrel.errors import BackendError, CapacityError, HubUnavailableError, KestrelError

    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if isinstance(error, KestrelError):
        cause: BaseException | None = error
        while isinstance(cause, KestrelError):  # one may have been made of another, "from None" too
            cause = cause.__cause__ or cause.__context__
        environment = isinstance(error, (BackendError, CapacityError, HubUnavailableError)) or (
            isinstance(cause, OSError) and not _is_wrong_path(cause)
        )
        return _ENVIRONMENT if environment else _INPUT, f"error: {error}"
    if isinstance(error, OSError):
        return _INPUT if _is_wrong_path(error) else _ENVIRONMENT, f"error: {_describe(error)}"
    if isinstance(error, MemoryError):
        return _ENVIRONMENT, "error: out of memory; --max-context N lowers what the cache may take"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("kestrel"):
        return _ENVIRONMENT, (
            f"error: the package {error.name!r} cannot be imported ({error}): install kestrel "
            "again with pip, which brings what it needs"
        )
    return _INTERNAL, "internal error (please report it with the traceback above)"


def _is_wrong_path(error: OSError) -> bool:
    """Whether the path that was given is the reason, not what the system allows."""
    # The class too: safetensors raises FileNotFoundError without an errno.
    return isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)) or (
        error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
    )


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"input or output: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}"


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"kestrel: warning: {message}", file=sys.stderr)


def _open_closed_streams() -> None:
    """Give a process that was started with closed streams (``>&-``) stand-ins.

    That of standard input cannot be read, so that it is told from an empty one.
    """
    for name, mode in (("stdin", "w"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def _discard_output() -> None:
    """Send what is left in the buffers nowhere, so that the interpreter's exit stays quiet."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):  # not a file: a test's capture
            pass
    os.close(devnull)
