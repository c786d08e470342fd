"""Token ids and other integers that users hand in: what is no integer is refused, never guessed.

And how messages count.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set

from kestrel.errors import RequestError

__all__ = ["counted", "integer", "token_ids"]

# All can be iterated and give integers, or their own order, which nobody meant as token ids.
_NOT_IDS = (str, bytes, bytearray, memoryview, Mapping, Set)


def counted(number: int, noun: str) -> str:
    """``1 byte``, ``4,096 bytes``."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def token_ids(ids: Iterable[int], expected: str = "token ids: expected integers") -> list[int]:
    """Python ints of a list, array or iterator of integers, NumPy's included; any value.

    Raises RequestError for text, bytes, mappings, sets, and elements that are bools or no integers;
    its message begins with ``expected``.
    """
    if isinstance(ids, _NOT_IDS):
        advice = "; model.encode makes them of text" if isinstance(ids, str) else ""
        raise RequestError(f"{expected}, found {ids!r:.80}{advice}")
    try:
        listed = list(ids)
        numbers = list(map(operator.index, listed))
    except TypeError:
        raise RequestError(f"{expected}, found {ids!r:.80}") from None
    if bool in set(map(type, listed)):
        at = next(i for i, each in enumerate(listed) if isinstance(each, bool))
        raise RequestError(f"{expected}, found {listed[at]} (a bool) at position {at}")
    return numbers


def integer(value: object, what: str, lowest: int, highest: int | None = None) -> int:
    """A Python int of an integer, NumPy's included, in a range whose ends both belong to it.

    Raises RequestError for bools, what is no integer, and integers outside the range.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
        if not isinstance(value, bool) and lowest <= number:
            if highest is None or number <= highest:
                return number
    except TypeError:
        pass
    span = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
    raise RequestError(f"{what}: expected an integer {span}, found {value!r:.80}")
