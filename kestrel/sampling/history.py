"""Which tokens a request has seen, kept up token by token for the penalties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["TokenHistory"]


class TokenHistory:
    """The distinct tokens of a prompt and its answer, with their counts in the answer.

    A new token costs the same however long the sequence is.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        distinct = dict.fromkeys(prompt_ids)
        self._place = {token: place for place, token in enumerate(distinct)}
        self._ids = np.array(list(distinct), dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    @property
    def ids(self) -> np.ndarray:
        """Distinct ids of prompt and answer, int64 [n], in the order of their first appearance."""
        return self._ids[: len(self._place)]

    @property
    def answer_counts(self) -> np.ndarray:
        """How often each of ``ids`` stands in the answer, float32 [n] (exact up to 2**24)."""
        return self._counts[: len(self._place)]

    def observe(self, token: int) -> None:
        """Count one more token of the answer."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            room = max(64, len(self._ids))
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._ids[place] = token
        self._counts[place] += 1
