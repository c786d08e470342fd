"""What one request asks of the sampler: every option, validated on construction."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from kestrel.dtypes import FLOAT32_MAX, FLOAT32_TINY
from kestrel.errors import RequestError

__all__ = ["GREEDY_TEMPERATURE", "SamplingParams"]

#: Temperatures below this mean greedy. Dividing logits by less would only separate candidates that
#: are closer than float32 rounding of the logits themselves; vLLM draws the line at the same value.
GREEDY_TEMPERATURE = 1e-5

_SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Options of one request; immutable. Raises RequestError that names the option.

    The order in which they act is documented in ``kestrel.sampling.transforms``.

    Attributes:
        max_tokens: most tokens to generate; None means up to the context limit.
        temperature: divides the logits; 0, or less than 1e-5, is exactly greedy (ties: lowest id).
        top_k: keep the k most likely tokens (ties: lowest ids first); 0 is off, 1 is greedy, more
            than the vocabulary is all of it.
        top_p: keep the smallest set of most likely tokens whose probability reaches top_p, the
            crossing token included; 1 is off.
        min_p: drop tokens less likely than min_p times the most likely one; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in the
            prompt or the answer, once per token; 1 is off.
        presence_penalty: subtracted from the logits of tokens seen in the answer; 0 is off.
        frequency_penalty: subtracted once per occurrence in the answer; 0 is off.
        logit_bias: added to the logits of these token ids; -inf bans a token.
        seed: of the random numbers, 0 to 2**64 - 1; None lets the caller draw one and report it.
        stop: strings that end the answer; no part of them is given out.
        stop_token_ids: ids that end the answer, besides the model's own end tokens.
        ignore_eos: go on past the model's own end tokens (not past stop and stop_token_ids).
        logprobs: how many of the most likely tokens to report with their log-probabilities besides
            the chosen one; 0 reports the chosen one only, None nothing.
        logprobs_after_sampling: report them for the distribution that the token was drawn from,
            instead of the model's own (the log-softmax of its logits before any option).
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_after_sampling: bool = False

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("max_tokens", _optional_integer("max_tokens", self.max_tokens, 1, None))
        put("temperature", _number("temperature", self.temperature, 0.0, None, "0 is greedy"))
        put("top_k", _integer("top_k", self.top_k, 0, None, "0 turns it off"))
        put("top_p", _number("top_p", self.top_p, 0.0, 1.0, "1 turns it off"))
        put("min_p", _number("min_p", self.min_p, 0.0, 1.0, "0 turns it off"))
        put("repetition_penalty", _above_zero("repetition_penalty", self.repetition_penalty))
        for name in ("presence_penalty", "frequency_penalty"):
            put(name, _float32(name, getattr(self, name), "0 turns it off"))
        put("logit_bias", _logit_bias(self.logit_bias))
        put("seed", _optional_integer("seed", self.seed, 0, _SEED_LIMIT - 1))
        put("stop", _stop_strings(self.stop))
        put("stop_token_ids", _token_ids(self.stop_token_ids))
        put("logprobs", _optional_integer("logprobs", self.logprobs, 0, None))
        for name in ("ignore_eos", "logprobs_after_sampling"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, "True or False", getattr(self, name))

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without a draw (penalties and bias still act)."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens seen so far matter."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some options changed. Raises RequestError also for an unknown option."""
        known = [option.name for option in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"options: {', '.join(known)}"
                raise RequestError(f"sampling option {name!r} does not exist: {hint}")
        return dataclasses.replace(self, **changes)


def _wrong(name: str, expected: str, found: object, hint: str = "") -> RequestError:
    tail = f" ({hint})" if hint else ""
    return RequestError(f"sampling option {name}: expected {expected}{tail}, found {found!r}")


def _integer(name: str, value: object, low: int, high: int | None, hint: str = "") -> int:
    expected = f"an integer of at least {low}" if high is None else f"an integer {low} to {high}"
    if isinstance(value, bool):
        raise _wrong(name, expected, value, hint)
    try:
        number = operator.index(value)  # also NumPy's integers, not floats or strings
    except TypeError:
        raise _wrong(name, expected, value, hint) from None
    if number < low or (high is not None and number > high):
        raise _wrong(name, expected, number, hint)
    return number


def _optional_integer(name: str, value: object, low: int, high: int | None) -> int | None:
    return None if value is None else _integer(name, value, low, high, "or None")


def _number(
    name: str, value: object, low: float | None, high: float | None, hint: str = ""
) -> float:
    expected = "a finite number"
    if low is not None:
        expected = f"a number {low:g} to {high:g}" if high is not None else f"{expected} >= {low:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _wrong(name, expected, value, hint)
    try:
        number = float(value)
    except OverflowError:  # an integer beyond float64
        raise _wrong(name, expected, value, hint) from None
    if not math.isfinite(number) or (low is not None and number < low):
        raise _wrong(name, expected, number, hint)
    if high is not None and number > high:
        raise _wrong(name, expected, number, hint)
    return number


def _above_zero(name: str, value: object) -> float:
    try:
        number = _number(name, value, None, None)
    except RequestError:
        number = 0.0
    if not FLOAT32_TINY <= number <= FLOAT32_MAX:
        raise _wrong(name, "a number above 0 that float32 can hold", value, "1 is off")
    return number


def _float32(name: str, value: object, hint: str) -> float:
    """A number that is finite in float32, too, in which logits are."""
    return _number(name, value, -FLOAT32_MAX, FLOAT32_MAX, hint)


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", "a mapping from token id to number", value)
    bias = {}
    for key, amount in value.items():
        token = _integer("logit_bias", key, 0, None, "a token id")
        if isinstance(amount, Real) and amount == -math.inf:
            bias[token] = -math.inf
        else:
            bias[token] = _float32(f"logit_bias[{token}]", amount, "or -inf to ban it")
    return bias


def _stop_strings(value: object) -> tuple[str, ...]:
    # A bare string is a sequence of strings too: taking it would stop at each of its letters.
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise _wrong("stop", "a tuple or list of strings", value)
    for stop in value:
        if not isinstance(stop, str) or not stop:
            raise _wrong("stop", "strings that are not empty", stop)
    return tuple(value)


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong("stop_token_ids", "a tuple or list of token ids", value)
    return tuple(_integer("stop_token_ids", token, 0, None, "a token id") for token in value)
