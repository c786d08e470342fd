"""Stop strings over text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on up to the first stop string, and never gives out a part of one.

    The stop string that is complete first ends the text, the longest of those that are complete at
    the same character; so the result does not depend on where the pieces end. Text that may be the
    beginning of a stop string waits until it is known not to be.

    Attributes:
        matched: the stop string that was found, or None.

    Args:
        stops: none of them empty.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can be given out now, and whether a stop string was found.

        Afterwards nothing more is given out.
        """
        if self.matched is not None:
            return "", True
        text = self._held + text
        found = [(text.find(stop) + len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, self.matched = min(found, key=lambda match: (match[0], -len(match[1])))
            self._held = ""
            return text[: end - len(self.matched)], True
        keep = self._beginning_at_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The text that was held back, once no more comes."""
        rest, self._held = self._held, ""
        return rest

    def _beginning_at_end(self, text: str) -> int:
        """Length of the longest end of ``text`` that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
