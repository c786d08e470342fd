"""Bytes that come in pieces to characters, with invalid bytes replaced as Rust and the web do."""

from __future__ import annotations

__all__ = ["Utf8Stream", "byte_of_char"]

_REPLACEMENT = "\ufffd"


class Utf8Stream:
    """Decodes a stream of UTF-8 bytes, giving out only whole characters.

    Each maximal part of a broken sequence becomes one U+FFFD (Unicode 16, section 3.9, "U+FFFD
    Substitution of Maximal Subparts"), as in Rust's ``String::from_utf8_lossy``.

    Attributes:
        invalid: some bytes could not belong to any character.
    """

    def __init__(self) -> None:
        self.invalid = False
        self._pending = b""

    def push(self, data: bytes) -> str:
        """The characters that are complete now."""
        data = self._pending + data
        self._pending = b""
        text = ""
        while data:
            try:
                return text + data.decode("utf-8")
            except UnicodeDecodeError as error:
                text += data[: error.start].decode("utf-8")
                if error.end == len(data) and error.reason == "unexpected end of data":
                    self._pending = data[error.start :]
                    return text
                text += _REPLACEMENT
                self.invalid = True
                data = data[error.end :]
        return text

    @property
    def incomplete(self) -> bool:
        """Whether a character has begun and not ended."""
        return bool(self._pending)

    def flush(self) -> str:
        """U+FFFD for the character that was not completed, if any."""
        rest = _REPLACEMENT if self._pending else ""
        self._pending = b""
        return rest


def byte_of_char() -> dict[str, int]:
    """What byte each character of a byte-level vocabulary stands for (``bytes_to_unicode``, GPT-2).

    Printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 and on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table
