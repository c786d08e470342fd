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
and sums are float64 and the same bits on every platform (``kestrel.sampling.portable``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kestrel.sampling.history import TokenHistory
from kestrel.sampling.portable import exp_nonpositive, tree_sum

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

#: Logits worked on at a time in ``mass``: its float64 temporaries then stay in the cache.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Candidates:
    """The head of a distribution: most likely first, equals by ascending id; never empty.

    Attributes:
        ids: int32 [k].
        logits: float32 [k]; float64 [k] and relative to the first once scaled.
    """

    ids: np.ndarray
    logits: np.ndarray

    @cached_property
    def weights(self) -> np.ndarray:
        """Probabilities relative to the first candidate's, float64 [k]: exp(logits - logits[0])."""
        logits = self.logits.astype(np.float64)
        return exp_nonpositive(logits - logits[0])

    @cached_property
    def cumulative(self) -> np.ndarray:
        """Weights added up one by one, first to last, float64 [k]."""
        return np.add.accumulate(self.weights)

    def head(self, count: int) -> Candidates:
        """The first ``count`` candidates; itself when that is all of them."""
        if count >= len(self.ids):
            return self
        kept = Candidates(self.ids[:count], self.logits[:count])
        for name in ("weights", "cumulative"):  # what is known of the whole is known of its head
            if name in self.__dict__:
                kept.__dict__[name] = self.__dict__[name][:count]
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

    All of them when k is V or more. The specification of ``kestrel._ops.top_candidates``.
    """
    if k < len(row):
        border = np.partition(row, len(row) - k)[len(row) - k]
        above = np.flatnonzero(row > border)
        equal = np.flatnonzero(row == border)[: k - len(above)]
        ids = np.concatenate([above, equal])
    else:
        ids = np.arange(len(row))
    # Ids ascend within each group of equal logits, and a stable sort keeps them so.
    ids = ids[np.argsort(-row[ids], kind="stable")]
    return Candidates(ids.astype(np.int32), row[ids])


def scale(c: Candidates, temperature: float) -> Candidates:
    """Logits, relative to the highest, divided by a temperature above 0; float64, no overflow."""
    logits = c.logits.astype(np.float64)
    return Candidates(c.ids, (logits - logits[0]) / temperature)


def mass(row: np.ndarray, temperature: float) -> float:
    """The sum of the weights of a whole row [V] of logits, relative to its highest, float64."""
    highest = float(row.max())
    sums = []
    for start in range(0, len(row), _BLOCK):
        block = row[start : start + _BLOCK].astype(np.float64)
        block -= highest
        block /= temperature
        sums.append(tree_sum(exp_nonpositive(block)))
    return tree_sum(np.array(sums))


def log_sum_exp(row: np.ndarray) -> float:
    """log(sum(exp(row))) of a row [V] of logits: logit minus this is a log-probability."""
    return float(row.max()) + math.log(mass(row, 1.0))


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
    reached = int(np.searchsorted(c.cumulative, p * total, side="left"))
    return c.head(reached + 1)


def min_p(c: Candidates, p: float) -> Candidates:
    """Candidates at least p times as likely as the most likely one (arXiv:2407.01082)."""
    return c.head(int(np.count_nonzero(c.weights >= p)))


def draw(c: Candidates, u: float, whole: float | None = None) -> int | None:
    """The id whose share of [0, 1), most likely first, holds ``u``.

    ``whole`` as for ``top_p``; None is returned when u falls beyond the head.
    """
    total = c.cumulative[-1] if whole is None else whole
    index = int(np.searchsorted(c.cumulative, u * total, side="right"))
    return int(c.ids[index]) if index < len(c) else None
