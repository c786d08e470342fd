"""What is read beside the options: a text from a file or from standard input, within a limit."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO

from kestrel.errors import RequestError

if TYPE_CHECKING:
    import argparse

__all__ = ["MAX_TEXT_BYTES", "check_stdin", "read_file", "read_stdin", "read_template"]

#: Far above any prompt or template; what is larger is a wrong file, or has no end.
MAX_TEXT_BYTES = 64 * 2**20


def read_file(path: str, what: str) -> str:
    """The text of a regular file; ``what`` names the option in messages.

    Raises RequestError where the file cannot be read, is no regular one, too large or not UTF-8,
    naming byte and offset.
    """
    try:
        # Asked before it is opened: opening a fifo waits, opening some devices acts.
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # open() refuses a folder in good words
            kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
            raise RequestError(f"{what}: expected a regular file, found that {path} is a {kind}")
        with open(path, "rb") as file:
            return _read(file, path)
    except OSError as error:
        raise RequestError(
            f"{what}: expected a UTF-8 file that can be read, found {path}: {error.strerror}"
        ) from error


def read_stdin() -> str:
    """The text on standard input. Raises RequestError as ``read_file``, or where it is closed."""
    check_stdin()
    return _read(sys.stdin.buffer, "standard input")


def read_template(args: "argparse.Namespace") -> str | None:
    """The file of --chat-template; None where the model's own is to be used.

    Raises TokenizerError where it is no Jinja template.
    """
    from kestrel.text.chat_template import check_template

    if args.chat_template is None:
        return None
    template = read_file(args.chat_template, "--chat-template")
    check_template(template, args.chat_template)
    return template


def check_stdin() -> None:
    """Raises RequestError where the program was started with a closed standard input."""
    if not sys.stdin.readable():
        raise RequestError("standard input: expected text, found that it is closed")


def _read(file: BinaryIO, source: str) -> str:
    data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise RequestError(f"{source}: expected at most {MAX_TEXT_BYTES:,} bytes, found more")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{source}: expected UTF-8 text, found the byte 0x{data[error.start]:02x} at offset "
            f"{error.start}"
        ) from None
