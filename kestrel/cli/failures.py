"""What went wrong, as one line on standard error and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from io import UnsupportedOperation

from kestrel.errors import BackendError, CapacityError, HubUnavailableError, KestrelError

__all__ = ["report"]

_NO_MEMORY = (
    "error: out of memory: allow more (ulimit -v); where a model runs, --max-context N lowers what "
    "its cache may take"
)
_INPUT, _ENVIRONMENT, _INTERNAL, _INTERRUPTED, _BROKEN_PIPE = 2, 3, 70, 128 + 2, 128 + 13


def report(error: BaseException, debug: bool) -> int:
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
            import traceback  # not worth its time where none is printed

            traceback.print_exception(type(error), error, error.__traceback__)
        print(f"kestrel: {message}", file=sys.stderr, flush=True)
    except OSError:
        _discard_output()
    return status


def _classify(error: BaseException) -> tuple[int, str]:
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
        return _ENVIRONMENT, _NO_MEMORY
    if isinstance(error, ImportError):
        while isinstance(error.__cause__, ImportError):  # NumPy wraps what it ran into in advice
            error = error.__cause__
        if not (error.name or "").startswith("kestrel"):
            return _ENVIRONMENT, f"error: {_describe_import(error)}"
    return _INTERNAL, "internal error (please report it with the traceback above)"


def _is_wrong_path(error: OSError) -> bool:
    """Whether the path that was given is the reason, not what the system allows."""
    # The class too: safetensors raises FileNotFoundError without an errno.
    return isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)) or (
        error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
    )


def _describe(error: OSError) -> str:
    reason = error.strerror or str(error)
    if isinstance(error, UnsupportedOperation) and not sys.stdout.writable():
        return "standard output: expected one for the results, found that it is closed"
    if error.filename is None:
        return f"input or output: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}"


def _describe_import(error: ImportError) -> str:
    if "failed to map" in str(error):  # the loader's words, which do not say why
        return (
            f"a library cannot be loaded ({error}): usually for too little memory: allow more "
            "(ulimit -v)"
        )
    package = f"the package {error.name!r}" if error.name else "a package"
    return (
        f"{package} cannot be imported ({error}): install kestrel again with pip, which brings "
        "what it needs"
    )


def _discard_output() -> None:
    """Send what is left in the buffers nowhere, so that the interpreter's exit stays quiet."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(devnull, stream.fileno())
        except (OSError, ValueError):  # not a file: a test's capture
            pass
    os.close(devnull)
