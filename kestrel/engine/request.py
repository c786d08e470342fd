"""What goes into the engine (requests) and what comes out of it (events)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Union

from kestrel.engine.step import check_ids
from kestrel.errors import KestrelError, RequestError
from kestrel.integers import counted, token_ids

if TYPE_CHECKING:
    from kestrel.cache.sequence import Sequence
    from kestrel.sampling.params import SamplingParams

__all__ = [
    "Event",
    "FinishReason",
    "Finished",
    "Request",
    "RequestId",
    "RequestState",
    "Token",
    "Usage",
]

RequestId = int


class RequestState(Enum):
    """Where a request stands; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(str, Enum):
    """Why a request ended. Compares equal to its value, a plain string."""

    STOP = "stop"  # an end token or a stop string
    LENGTH = "length"  # max_tokens, the context limit, or the cache's capacity
    CANCELLED = "cancelled"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: of those, positions that were found in the cache and not computed.
        completion_tokens: generated tokens, an end token included.
        queue_seconds: from being added until its first step was planned.
        prefill_seconds: from then until the first generated token (or the end, without one).
        decode_seconds: from the first generated token until the end; it is the time of
            ``completion_tokens - 1`` decode steps, of the waits in between if the request was
            preempted, and of what a Phi-3 computes anew past its original length.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    Attributes:
        text: what it adds to the decoded text; may be empty (half a character, a held-back stop
            string, a control token).
        logprob: natural logarithm of its probability, None unless asked for.
        top_logprobs: the most likely (id, logprob) pairs, None unless asked for.
    """

    request_id: RequestId
    id: int
    text: str
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every request.

    Attributes:
        note: says in words what ``reason`` leaves open, and what is wrong with the text.
        error: what to raise when ``reason`` is "error", else None.
        seed: of the request's random numbers, given or drawn; None when greedy.
    """

    request_id: RequestId
    reason: FinishReason
    usage: Usage
    note: str = ""
    error: KestrelError | None = None
    seed: int | None = None


Event = Union[Token, Finished]


@dataclass(slots=True, eq=False)
class Request:
    """A prompt and how to continue it. The scheduler fills in the second group of fields.

    Attributes:
        ids: token ids of the prompt.
        params: how to sample; not looked at by the scheduler.
        max_tokens: generated tokens after which it ends with reason "length"; None leaves that to
            the context limit.
        stop_ids: token ids that end it with reason "stop".
        id: given by `Scheduler.add`, ascending; 0 before.
        sequence: prompt and generated tokens, with their cache blocks.
        cached_tokens: positions found in the cache when it first ran.
        preemptions: how often it had to give its blocks back.
        added_at, started_at, first_token_at: readings of the scheduler's clock, in seconds.
    """

    ids: list[int]
    params: SamplingParams | None = None
    max_tokens: int | None = None
    stop_ids: frozenset[int] = frozenset()

    id: RequestId = field(default=0, init=False)
    state: RequestState = field(default=RequestState.WAITING, init=False)
    sequence: Sequence = field(init=False)
    cached_tokens: int = field(default=0, init=False)
    preemptions: int = field(default=0, init=False)
    added_at: float = field(default=0.0, init=False)
    started_at: float | None = field(default=None, init=False)
    first_token_at: float | None = field(default=None, init=False)

    def check(self, max_context: int, vocab_size: int) -> None:
        """Raise RequestError unless it can be served.

        That takes a prompt of ids of the vocabulary (``ids`` becomes a list of ints), not empty,
        with room for at least one token below the context limit, and a max_tokens of 1 or more.
        """
        self.ids = token_ids(self.ids, "the prompt: expected a list of token ids, integers")
        if not self.ids:
            raise RequestError("the prompt has no tokens: expected at least one, found 0")
        if len(self.ids) >= max_context:
            raise RequestError(
                f"the prompt has {counted(len(self.ids), 'token')} and the context limit is "
                f"{max_context}, of which at least one must be left for the answer: shorten the "
                f"prompt to {counted(max_context - 1, 'token')} (nothing is cut off unasked)"
            )
        check_ids(self.ids, vocab_size)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens: expected at least 1, found {self.max_tokens}")

    @property
    def completion_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.sequence.tokens) - len(self.ids)

    def usage(self, now: float) -> Usage:
        """What it cost until ``now``, a reading of the scheduler's clock."""
        started = now if self.started_at is None else self.started_at
        first = now if self.first_token_at is None else self.first_token_at
        return Usage(
            prompt_tokens=len(self.ids),
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            queue_seconds=started - self.added_at,
            prefill_seconds=first - started,
            decode_seconds=now - first,
        )
