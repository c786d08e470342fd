"""The steps of sampling, each a pure function; none changes its argument.

They act in this order, which is that of transformers (5.24, ``generation/utils.py``,
``_get_logits_processor``: processors first, in greedy decoding too, then the warpers, in sampling
only) with vLLM's presence and frequency penalties, which transformers lacks, beside the repetition
penalty:

1. ``add_bias``: logit_bias (SequenceBiasLogitsProcessor with sequences of one token)
2. ``penalize``: repetition_penalty (RepetitionPenaltyLogitsProcessor), then frequency and presence
3. tokens without text are left out
4. greedy ends here: the highest logit, the lowest id among equals
5. ``scale``: temperature (TemperatureLogitsWarper)
6. ``top_k`` (TopKLogitsWarper; of equal logits at the border transformers keeps all, Kestrel the
   lowest ids, so that top_k=1 is greedy)
7. ``top_p`` (TopPLogitsWarper), of what top_k left
8. ``min_p`` (MinPLogitsWarper)
9. ``draw``

Steps 1 to 3 work on a row of float32 logits, the others on a list of candidates in order. Weights
and sums are float64 and the same bits on every platform: what runs over a row is native where the
extension is built, else NumPy's that specifies it (``kestrel.sampling.portable``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kestrel.sampling.history import TokenHistory

try:
    from kestrel import _ops as rows
except ImportError:
    from kestrel.sampling import portable as rows

__all__ = [
    "Candidates",
    "add_bias",
    "draw",
    "log_sum_exp",
    "mass",
    "min_p",
    "penalize",
    "scale",
    "top_candidates",
    "top_k",
    "top_p",
]

_LOG2_E = 1.4426950408889634  # log2(e)


class Candidates:
    """The head of a distribution: most likely first, equals by ascending id; immutable, not empty.

    Attributes:
        ids: int32 [k].
        logits: float32 [k].
        temperature: above 1e-300, divides the logits.
    """

    __slots__ = ("_cumulative", "_weights", "ids", "logits", "temperature")

    def __init__(self, ids: np.ndarray, logits: np.ndarray, temperature: float = 1.0) -> None:
        self.ids = ids
        self.logits = logits
        self.temperature = temperature
        self._weights: np.ndarray | None = None
        self._cumulative: np.ndarray | None = None

    @property
    def weights(self) -> np.ndarray:
        """Probabilities relative to the first candidate's, float64 [k].

        exp((logits - logits[0]) / temperature), which does not overflow.
        """
        if self._weights is None:
            self._weigh()
        return self._weights

    @property
    def cumulative(self) -> np.ndarray:
        """Weights added up one by one, first to last, float64 [k]."""
        if self._cumulative is None:
            self._weigh()
        return self._cumulative

    def _weigh(self) -> None:
        self._weights, self._cumulative = np.empty((2, len(self.ids)))
        rows.weigh(self.logits, _LOG2_E / self.temperature, self._weights, self._cumulative)

    def head(self, count: int) -> Candidates:
        """The first ``count`` candidates; itself when that is all of them."""
        if count >= len(self.ids):
            return self
        kept = Candidates(self.ids[:count], self.logits[:count], self.temperature)
        if self._weights is not None:  # what is known of the whole is known of its head
            kept._weights, kept._cumulative = self._weights[:count], self._cumulative[:count]
        return kept

    def __len__(self) -> int:
        return len(self.ids)


def add_bias(row: np.ndarray, bias: Mapping[int, float]) -> np.ndarray:
    """A copy of float32 logits [V] with ``bias`` added to the ids it names."""
    biased = row.copy()
    ids = np.fromiter(bias.keys(), np.int64, len(bias))
    biased[ids] += np.fromiter(bias.values(), np.float32, len(bias))
    return biased


def penalize(
    row: np.ndarray, history: TokenHistory, repetition: float, presence: float, frequency: float
) -> np.ndarray:
    """A copy of float32 logits [V] with the penalties on the tokens that were seen.

    Repetition (Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the multiplication for
    negative logits that transformers added): once per token of prompt or answer, however often it
    occurs. Frequency and presence (the OpenAI API, as in vLLM): ``count * frequency`` and
    ``(count > 0) * presence`` are subtracted, where only the answer counts.
    """
    penalized = row.copy()
    values = row[history.ids]
    if repetition != 1.0:
        factor = np.float32(repetition)
        values = np.where(values < 0, values * factor, values / factor)
    if frequency != 0.0:
        values = values - np.float32(frequency) * history.answer_counts
    if presence != 0.0:
        values = values - np.float32(presence) * (history.answer_counts > 0)
    penalized[history.ids] = values
    return penalized


def top_candidates(row: np.ndarray, k: int) -> Candidates:
    """The k highest of float32 logits [V] without NaN: descending, equals by ascending id.

    All of them when k is V or more.
    """
    k = min(k, len(row))
    ids, logits = np.empty(k, np.int32), np.empty(k, np.float32)
    found = rows.top_candidates(row, ids, logits)
    return Candidates(ids[:found], logits[:found])


def scale(c: Candidates, temperature: float) -> Candidates:
    """The logits divided by a temperature above 0."""
    return Candidates(c.ids, c.logits, temperature)


def mass(row: np.ndarray, temperature: float, highest: float | None = None) -> float:
    """The sum of the weights of a whole row [V] of float32 logits, relative to its highest.

    ``highest`` saves looking for it.
    """
    highest = float(row.max()) if highest is None else highest
    return rows.mass(row, highest, _LOG2_E / temperature)


def log_sum_exp(row: np.ndarray) -> float:
    """log(sum(exp(row))) of a row [V] of logits: logit minus this is a log-probability."""
    highest = float(row.max())
    return highest + math.log(mass(row, 1.0, highest))


def top_k(c: Candidates, k: int) -> Candidates:
    """The k most likely; all of them for k = 0."""
    return c.head(k) if k else c


def top_p(c: Candidates, p: float, whole: float | None = None) -> Candidates:
    """The fewest most likely candidates that have at least p of the mass together; at least one.

    A candidate stays when those before it have less than p (Holtzman et al. 2019,
    arXiv:1904.09751). ``whole`` is the mass of the distribution whose head ``c`` is; None when it
    is the whole. When the head ends before p is reached, all of it comes back.
    """
    total = c.cumulative[-1] if whole is None else whole
    reached = int(c.cumulative.searchsorted(p * total, side="left"))
    return c.head(reached + 1)


def min_p(c: Candidates, p: float) -> Candidates:
    """Candidates at least p times as likely as the most likely one (arXiv:2407.01082)."""
    return c.head(int(np.count_nonzero(c.weights >= p)))


def draw(c: Candidates, u: float, whole: float | None = None) -> int | None:
    """The id whose share of [0, 1), most likely first, holds ``u``.

    ``whole`` as for ``top_p``; None is returned when u falls beyond the head.
    """
    total = c.cumulative[-1] if whole is None else whole
    index = int(c.cumulative.searchsorted(u * total, side="right"))
    return int(c.ids[index]) if index < len(c) else None
