"""From a row of logits to a token: the composition of the transforms that a request asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kestrel.errors import NumericalError, RequestError
from kestrel.sampling import transforms
from kestrel.sampling.history import TokenHistory
from kestrel.sampling.params import SamplingParams
from kestrel.sampling.transforms import Candidates

__all__ = ["Sampled", "Sampler", "build", "check_ids"]

#: How many candidates are selected first; more are when the cut could matter.
FIRST_CUT = 256
_ALL = 2**31  # no vocabulary has as many


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and, where asked for, log-probabilities (natural logarithm).

    Attributes:
        id: the chosen token.
        logprob: of the chosen token; None when the request asks for none.
        top: the most likely tokens as (id, logprob), most likely first; None as above.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] | None = None


def check_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError when logit_bias or stop_token_ids name an id not below vocab_size."""
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token in ids:
            if token >= vocab_size:
                raise RequestError(
                    f"sampling option {name}: expected token ids 0 to {vocab_size - 1} "
                    f"(vocab_size {vocab_size}), found {token}"
                )


def build(
    params: SamplingParams, *, vocab_size: int, without_text: Sequence[int] | np.ndarray = ()
) -> Sampler:
    """The sampler for one request's options; immutable, may serve many requests with the same.

    Args:
        params: the options.
        vocab_size: V, the number of logits in a row.
        without_text: ids below V that the tokenizer cannot decode: never drawn.

    Raises:
        RequestError: as ``check_ids``.
    """
    check_ids(params, vocab_size)
    # Not np.unique: its first call imports numpy.ma, a tenth of the whole start.
    ascending = sorted(set(map(int, without_text)))
    return Sampler(params, vocab_size, np.asarray(ascending, dtype=np.int64))


class Sampler:
    """Draws tokens as ``params`` says; made by ``build``. Holds no state between tokens."""

    def __init__(self, params: SamplingParams, vocab_size: int, without_text: np.ndarray) -> None:
        self.params = params
        self._vocab_size = vocab_size
        # Ids without text are mostly padding rows at the end: a shorter view leaves them out.
        self._limit = vocab_size
        while len(without_text) and without_text[-1] == self._limit - 1:
            self._limit -= 1
            without_text = without_text[:-1]
        self._holes = without_text
        self._hole_ids = frozenset(without_text.tolist())
        changes = params.logit_bias or params.has_penalties or self._hole_ids
        self._keeps_rows = not changes and self._limit == vocab_size
        if self._limit == 0:
            raise RequestError(f"none of the {vocab_size} ids of the vocabulary has text")

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the highest logit alone decides and nothing else is asked for.

        Then a token that the device found by argmax is the answer, if ``allows`` it.
        """
        p = self.params
        return p.is_greedy and not p.has_penalties and not p.logit_bias and p.logprobs is None

    def allows(self, token: int) -> bool:
        """Whether ``token`` is an id with text."""
        return 0 <= token < self._limit and token not in self._hole_ids

    def new_history(self, prompt_ids: Iterable[int]) -> TokenHistory | None:
        """What to hand to ``sample`` and to tell of each new token; None when no penalty is on."""
        return TokenHistory(prompt_ids) if self.params.has_penalties else None

    def sample(
        self, logits: memoryview | np.ndarray, u: float, history: TokenHistory | None = None
    ) -> Sampled:
        """Choose a token. The row is not changed, nor is the history told of the choice.

        Args:
            logits: float32 [V], C-contiguous.
            u: uniform in [0, 1) (``rng.uniform``); greedy does not look at it.
            history: from ``new_history``; needed when it gave one.

        Raises:
            NumericalError: a logit is NaN or +inf, or all are -inf.
            RequestError: the options leave no token, or overflow.
        """
        raw = np.asarray(logits)
        assert raw.shape == (self._vocab_size,) and raw.dtype == np.float32
        highest = float(raw.max())  # NaN if any is
        if not math.isfinite(highest):
            bad = int(np.count_nonzero(~np.isfinite(raw)))
            raise NumericalError(
                f"logits: expected finite numbers, found a highest of {highest} with {bad} of "
                f"{self._vocab_size} not finite; KESTREL_EAGER=1 finds the stage where it began"
            )
        row = raw if self._keeps_rows else self._process(raw, history)
        p = self.params
        if p.is_greedy:
            token = int(row.argmax())
            chosen = Candidates(np.array([token], np.int32), row[token : token + 1])
            total = 1.0  # the weight of the only candidate
        else:
            token, chosen, total = self._draw(row, u)
        if p.logprobs is None:
            return Sampled(token)
        if p.logprobs_after_sampling:
            return _report_drawn(token, chosen, total, p.logprobs)
        top = transforms.top_candidates(raw, p.logprobs) if p.logprobs else None
        return _report_raw(token, raw, top)

    def _process(self, raw: np.ndarray, history: TokenHistory | None) -> np.ndarray:
        """Bias, penalties and the ids without text: float32 [at most V]."""
        p = self.params
        row = raw
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            if p.logit_bias:
                row = transforms.add_bias(row, p.logit_bias)
            if p.has_penalties:
                assert history is not None
                row = transforms.penalize(
                    row, history, p.repetition_penalty, p.presence_penalty, p.frequency_penalty
                )
        if len(self._holes):
            row = row.copy() if row is raw else row
            row[self._holes] = -np.inf
        row = row[: self._limit]
        highest = float(row.max())
        if not math.isfinite(highest):
            raise RequestError(
                "sampling options logit_bias, repetition_penalty, presence_penalty and "
                "frequency_penalty: expected at least one token with text and a finite logit after "
                f"them, found a highest logit of {highest}"
            )
        return row

    def _draw(self, row: np.ndarray, u: float) -> tuple[int, Candidates, float]:
        """A token, the candidates it was drawn from, and the mass of all that could be drawn.

        Whatever the first cut, the result is that of the whole row.
        """
        p = self.params
        whole = None  # the mass of the row, needed only when the list is not all of it
        wanted = p.logprobs or 0 if p.logprobs_after_sampling else 0
        count = min(p.top_k or max(FIRST_CUT, wanted), len(row))
        while True:
            c = transforms.scale(transforms.top_candidates(row, count), p.temperature)
            complete = bool(p.top_k) or count == len(row)
            share = None  # of the mass, which the list must reach
            if not complete and (p.top_p < 1.0 or p.min_p == 0.0):
                if whole is None:
                    whole = transforms.mass(row, p.temperature, float(c.logits[0]))
                share = p.top_p if p.top_p < 1.0 else u
            kept = c
            if p.top_p < 1.0:
                kept = transforms.top_p(kept, p.top_p, whole)
            if p.min_p > 0.0:
                kept = transforms.min_p(kept, p.min_p)
            if complete or len(kept) < len(c):
                token = transforms.draw(kept, u)
                assert token is not None
                return token, kept, float(kept.cumulative[-1])
            if p.top_p == 1.0 and p.min_p == 0.0:
                token = transforms.draw(c, u, whole)
                if token is not None:
                    return token, c, whole
            count = min(_longer(c, share, whole), len(row))


def _longer(c: Candidates, share: float | None, whole: float | None) -> int:
    """How many candidates to try after ``c``, whose mass is less than ``share`` of ``whole``."""
    if share is None or whole is None:
        return 8 * len(c)
    last = float(c.weights[-1])
    if last == 0.0:
        return _ALL
    # If all the others weighed as much as the last one: they weigh less, so four times as many.
    lacking = (share * whole - float(c.cumulative[-1])) / last
    return len(c) + max(len(c), math.ceil(min(4.0 * lacking, _ALL)))


def _report_drawn(token: int, c: Candidates, total: float, count: int) -> Sampled:
    """Log-probabilities in the distribution that ``token`` was drawn from."""
    norm = math.log(total)
    place = int(np.flatnonzero(c.ids == token)[0])
    logprobs = [float(np.log(weight)) - norm for weight in c.weights[: max(count, place + 1)]]
    top = tuple(zip(c.ids[:count].tolist(), logprobs))
    return Sampled(token, logprobs[place], top)


def _report_raw(token: int, raw: np.ndarray, top: Candidates | None) -> Sampled:
    """Log-softmax of the model's own logits, float64: logit - log(sum(exp(logits)))."""
    norm = transforms.log_sum_exp(raw)
    listed = () if top is None else zip(top.ids.tolist(), (top.logits.astype(np.float64) - norm))
    return Sampled(
        token, float(raw[token]) - norm, tuple((other, float(logprob)) for other, logprob in listed)
    )
