"""The steps of a tokenizer's decoder, one token at a time.

The ``decoder`` of tokenizer.json is a chain of steps over the list of all tokens; the library's own
(``tokenizers/src/decoders``, version 0.23) want the whole list. Here each is a small machine that
gives out what no later token can change. A step that comes after all tokens were joined into one
(Fuse, ByteLevel) gets pieces of that one text instead of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from kestrel.errors import TokenizerError
from kestrel.text.utf8 import Utf8Stream, byte_of_char

__all__ = ["Health", "Step", "build_steps"]

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BYTE_OF_CHAR = byte_of_char()


class Health:
    """What was wrong with the bytes of a text; see ``IncrementalDecoder``."""

    def __init__(self) -> None:
        self.ended_early = False
        self.invalid = False


class Step(Protocol):
    """Takes a token or a piece of the joined text; both methods give out what is settled."""

    def push(self, token: str) -> list[str]: ...
    def flush(self) -> list[str]: ...


class _Stateless:
    """Base of steps that keep nothing back."""

    def flush(self) -> list[str]:
        return []


class _Replace(_Stateless):
    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content

    def push(self, token: str) -> list[str]:
        return [token.replace(self._pattern, self._content)]


class _StripEach(_Stateless):
    """Takes up to ``start`` and ``stop`` characters ``content`` off the ends of each token."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content = content
        self._start = start
        self._stop = stop

    def push(self, token: str) -> list[str]:
        token = token[_leading(token, self._content, self._start) :]
        return [token[: len(token) - _leading(token[::-1], self._content, self._stop)]]


class _StripStart(_Stateless):
    """Takes up to ``count`` characters ``content`` off the start of the joined text."""

    def __init__(self, content: str, count: int) -> None:
        self._content = content
        self._left = count

    def push(self, token: str) -> list[str]:
        cut = _leading(token, self._content, self._left)
        # The first other character ends the run of leading ones, however many were allowed.
        self._left = self._left - cut if cut == len(token) else 0
        return [token[cut:]]


class _Metaspace(_Stateless):
    def __init__(self, replacement: str, drop_first: bool) -> None:
        self._replacement = replacement
        self._drop = drop_first

    def push(self, token: str) -> list[str]:
        blank = "" if self._drop else " "
        self._drop = False
        return [token.replace(self._replacement, blank)]


class _SpaceBetween(_Stateless):
    """A tokenizer without a decoder: tokens with blanks between them."""

    def __init__(self) -> None:
        self._first = True

    def push(self, token: str) -> list[str]:
        piece = token if self._first else " " + token
        self._first = False
        return [piece]


class _ByteFallback:
    """``<0xE2>`` and its like to characters.

    The library decodes a run of byte tokens together, and when the run as a whole is not UTF-8 each
    of its bytes becomes U+FFFD, so nothing of a run is settled before a token of text ends it.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
        self._run = bytearray()

    def push(self, token: str) -> list[str]:
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte:
            self._run.append(int(byte[1], 16))
            return []
        return [*self._end_run(at_end=False), token]

    def flush(self) -> list[str]:
        return self._end_run(at_end=True)

    def _end_run(self, at_end: bool) -> list[str]:
        run = bytes(self._run)
        self._run.clear()
        try:
            return [run.decode("utf-8")] if run else []
        except UnicodeDecodeError:
            stream = Utf8Stream()
            stream.push(run)
            self._health.ended_early |= at_end and stream.incomplete
            self._health.invalid |= stream.invalid or not at_end
            return [_REPLACEMENT] * len(run)


class _ByteLevel:
    """Each character of a token stands for a byte; a token with any other stands for itself."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._stream = Utf8Stream()

    def push(self, token: str) -> list[str]:
        try:
            data = bytes([_BYTE_OF_CHAR[char] for char in token])
        except KeyError:
            data = token.encode("utf-8")
        text = self._stream.push(data)
        self._health.invalid |= self._stream.invalid
        self._stream.invalid = False
        return [text]

    def flush(self) -> list[str]:
        self._health.ended_early |= self._stream.incomplete
        return [self._stream.flush()]


def build_steps(decoder: Sequence[Mapping[str, object]] | None, health: Health) -> list[Step]:
    """Machines for the steps of tokenizer.json's ``decoder``.

    Args:
        decoder: the steps in order, sequences flattened; None where the tokenizer has no decoder.
        health: where the steps note broken bytes.

    Raises:
        TokenizerError: a step, or a setting of one, that is not supported here; names it.
    """
    if decoder is None:
        return [_SpaceBetween()]
    steps: list[Step] = []
    joined = False
    for index, spec in enumerate(decoder):
        kind = spec.get("type")
        if kind == "Replace" and (pattern := _plain_pattern(spec, joined)):
            steps.append(_Replace(pattern, str(spec["content"])))
        elif kind == "Strip" and not joined:
            steps.append(_StripEach(str(spec["content"]), int(spec["start"]), int(spec["stop"])))
        elif kind == "Strip" and spec.get("stop") == 0:
            steps.append(_StripStart(str(spec["content"]), int(spec["start"])))
        elif kind == "Metaspace" and not joined:
            scheme = spec.get("prepend_scheme", "always")
            steps.append(_Metaspace(str(spec["replacement"]), scheme != "never"))
        elif kind == "ByteFallback" and not joined:
            steps.append(_ByteFallback(health))
        elif kind == "ByteLevel" and not joined:
            steps.append(_ByteLevel(health))
            joined = True
        elif kind == "Fuse":
            joined = True
        else:
            raise TokenizerError(
                f"tokenizer.json: decoder step {index}, {dict(spec)}: this text cannot be decoded "
                "token by token; supported are ByteLevel, ByteFallback, Fuse, Metaspace, Replace "
                "of a plain text (of one character after the tokens were joined) and Strip (at the "
                "start only, after that)",
                "tokenizer.json",
            )
    return steps


def _plain_pattern(spec: Mapping[str, object], joined: bool) -> str | None:
    """The text that a Replace looks for; None for a regex, or one that may lie across pieces."""
    pattern = spec.get("pattern")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if not isinstance(text, str) or not text or (joined and len(text) > 1):
        return None
    return text


def _leading(text: str, char: str, limit: int) -> int:
    """How many of the first ``limit`` characters are ``char``, up to the first other."""
    count = 0
    while count < min(limit, len(text)) and text[count] == char:
        count += 1
    return count
