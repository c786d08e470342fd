"""What the parser is made of: an ArgumentParser of our habits, and the types of option values.

Each type turns the text of an option into its value, or says what it expected and found. Only the
standard library is imported, see kestrel.cli.parser.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from functools import partial

__all__ = [
    "MAX_THREADS", "Options", "Parser", "bias", "count", "isa", "number", "path", "text",
    "thread_counts", "token_ids", "utf8",
]  # fmt: skip

_LARGEST_ID = 2**31 - 1  # token ids travel as int32

#: That of kestrel.runtime, which is not imported for it.
MAX_THREADS = 256

Synopsis = tuple[str, ...]
Sections = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, with sections of pairs below its help.

    Attributes:
        sections: (heading, ((term, meaning), ...)) for ``--help`` and the man page.
    """

    def __init__(self, *args, synopsis: Synopsis = (), sections: Sections = (), **kwargs) -> None:
        super().__init__(*args, allow_abbrev=False, formatter_class=_formatter, **kwargs)
        self.sections = sections
        # Where argparse-manpage looks for sections beside those that argparse knows.
        self._manpage = [
            {"heading": heading, "content": "\n".join(_roff(*row) for row in rows)}
            for heading, rows in sections
        ]
        if synopsis:
            self.usage = "\n       ".join(f"{self.prog} {form}" for form in synopsis)
            forms = (f".B {self.prog}\n{form}" for form in synopsis)
            self._manpage.append({"heading": "synopsis", "content": "\n.br\n".join(forms)})

    def format_help(self) -> str:
        """The usual help text, then the sections."""
        text = super().format_help()
        for heading, rows in self.sections:
            width = 2 + max(len(term) for term, _ in rows)
            lines = (f"  {term:<{width}}{meaning}" for term, meaning in rows)
            text += f"\n{heading}:\n" + "\n".join(lines) + "\n"
        return text


    def _print_message(self, message: str, file=None) -> None:
        # As argparse's own, which keeps it to itself when the disk is full.
        if message:
            (file or sys.stderr).write(message)


#: A parser or a group of its options: what has ``add_argument``.
Options = argparse._ActionsContainer


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse-manpage sets the variable: its page must not depend on someone's terminal.
    width = 80 if "BUILD_MANPAGES_RUNNING" in os.environ else None
    return argparse.HelpFormatter(prog, width=width)


def _roff(term: str, meaning: str) -> str:
    escaped = [text.replace("\\", "\\\\").replace("-", "\\-") for text in (term, meaning)]
    return ".TP\n\\fB{}\\fR\n{}".format(*escaped)


def count(low: int, high: int | None = None) -> Callable[[str], int]:
    """The type of a whole number of at least ``low`` and at most ``high``."""
    return partial(_integer, low=low, high=high)


def _integer(text: str, low: int, high: int | None) -> int:
    digits = text[1:] if text[:1] == "-" else text
    value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 40 else None
    if value is None or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise argparse.ArgumentTypeError(f"expected a whole number {limits}, found {text!r}")
    return value


def number(text: str, expected: str = "a finite number") -> float:
    """A finite number. Which range makes sense is for SamplingParams to say."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}")
    return value


def token_ids(text: str) -> list[int]:
    """Token ids between commas or spaces; at least one."""
    words = text.replace(",", " ").split()
    if not words:
        raise argparse.ArgumentTypeError(f"expected token ids, as in '0 3895 562', found {text!r}")
    return [_integer(word, 0, _LARGEST_ID) for word in words]


def thread_counts(text: str) -> list[int]:
    """Numbers of threads between commas; at least one, each once."""
    try:
        counts = [_integer(word, 1, MAX_THREADS) for word in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers from 1 to {MAX_THREADS} between commas, as in 1,2,4, found "
            f"{text!r}"
        ) from None
    if len(set(counts)) < len(counts):
        raise argparse.ArgumentTypeError(f"expected each thread count once, found {text!r}")
    return counts


def bias(text: str) -> tuple[int, float]:
    """``ID=X``: a token id and what to add to its logit; ``-inf`` bans the token."""
    token, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected ID=X, as in 13=-2.5, found {text!r}")
    amount = -math.inf if value == "-inf" else number(value, "a finite number, or -inf")
    return _integer(token, 0, _LARGEST_ID), amount


def utf8(text: str) -> str:
    """Text whose bytes were UTF-8, also where the locale made lone surrogates of them.

    Raises ValueError that names the first byte which is not.
    """
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError as error:
        surrogate = f"U+{ord(text[error.start]):04X}"
    try:
        return os.fsencode(text).decode("utf-8")
    except UnicodeDecodeError as error:
        byte, offset = error.object[error.start], error.start
        message = f"expected UTF-8 text, found the byte 0x{byte:02x} at offset {offset}"
    except UnicodeEncodeError:  # no byte stands behind it: a caller's string, not the system's
        message = f"expected UTF-8 text, found {surrogate}"
    raise ValueError(message)


def text(value: str) -> str:
    """Any text that is UTF-8."""
    try:
        return utf8(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def isa(name: str) -> str:
    """The name of an instruction set; which there are is for the extension to say."""
    if not name:
        raise argparse.ArgumentTypeError(
            "expected the name of an instruction set (see kestrel devices), found ''"
        )
    return name


def path(text: str) -> str:
    """A path that the system can be asked for: not empty, without NUL."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"expected a path, found {text!r}")
    return text
