"""Engine: requests in, events out. It belongs to the thread that made it.

A step is: plan which tokens to compute, run them, pick a token for each request that wants one,
turn it into text, and tell what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kestrel.engine.plan import StepPlan
from kestrel.engine.request import (
    Event,
    Finished,
    FinishReason,
    Request,
    RequestId,
    Token,
    Usage,
)
from kestrel.engine.scheduler import Scheduler
from kestrel.errors import CapacityError, KestrelError, RequestError
from kestrel.sampling.params import SamplingParams
from kestrel.sampling.rng import fresh_seed, uniform
from kestrel.sampling.sampler import Sampled, Sampler, build
from kestrel.text.incremental import IncrementalDecoder
from kestrel.text.stop import StopMatcher

if TYPE_CHECKING:
    from kestrel.cache.block_pool import BlockPool
    from kestrel.engine.runner import Runner
    from kestrel.sampling.history import TokenHistory
    from kestrel.tokenizer import Tokenizer

__all__ = ["Engine", "Generation", "collect"]

_STOP_STRING = "a stop string was written"
_ENDED_EARLY = "the text ends inside a character"
_INVALID = "the text has bytes that belong to no character"


@dataclass(frozen=True, slots=True)
class Generation:
    """One finished answer.

    Attributes:
        text: the answer alone, without prompt, stop string or control tokens.
        ids: its token ids, an end token included.
        prompt_ids: what was fed before them.
        reason: ``stop`` or ``length``; ``note`` says more where it can.
        usage: tokens and seconds.
        seed: of the random numbers, given or drawn; None when greedy.
        logprobs: natural-log probability of each id, when asked for.
        top_logprobs: the most likely (id, logprob) pairs at each position, when asked for.
    """

    text: str
    ids: list[int]
    prompt_ids: list[int]
    reason: FinishReason
    usage: Usage
    seed: int | None
    note: str = ""
    logprobs: list[float] | None = None
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class _Answer:
    """What the engine keeps beside a request while it runs."""

    request: Request
    sampler: Sampler
    is_plain_greedy: bool
    history: "TokenHistory | None"
    seed: int | None
    decoder: IncrementalDecoder
    matcher: StopMatcher | None
    error: KestrelError | None = None


class Engine:
    """Continuous batching over one model.

    Args:
        runner: the compiled program; other engines and sessions may share it.
        pool: blocks of the cache.
        end_ids: token ids that end an answer unless ``ignore_eos``.
    """

    def __init__(
        self, runner: "Runner", pool: "BlockPool", tokenizer: "Tokenizer", end_ids: frozenset[int]
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._vocab_size = runner.program.vocab_size
        # No more sequences than a step has logit rows: each may want one.
        self._scheduler = Scheduler(
            pool,
            runner.max_tokens,
            min(runner.max_seqs, runner.max_logit_rows),
            runner.max_context,
            self._vocab_size,
        )
        self._answers: dict[RequestId, _Answer] = {}
        self._is_computing = False
        self._closed = False

    @property
    def has_work(self) -> bool:
        """Whether another ``step`` would do anything."""
        return bool(self._answers)

    def add(self, ids: list[int], params: "SamplingParams") -> RequestId:
        """Queue a prompt. Raises RequestError and CapacityError as ``Scheduler.add`` does."""
        self._check_open()
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params: expected SamplingParams, found {params!r:.80}")
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self._end_ids
        request = Request(ids, params, params.max_tokens, stop_ids)
        request.check(self._runner.max_context, self._vocab_size)
        without_text = self._tokenizer.ids_without_text(self._vocab_size)
        sampler = build(params, vocab_size=self._vocab_size, without_text=without_text)
        seed = params.seed
        if seed is None and not params.is_greedy:
            seed = fresh_seed()
        answer = _Answer(
            request=request,
            sampler=sampler,
            is_plain_greedy=sampler.is_plain_greedy,
            history=sampler.new_history(request.ids),
            seed=seed,
            decoder=IncrementalDecoder(self._tokenizer, request.ids),
            matcher=StopMatcher(params.stop) if params.stop else None,
        )
        request_id = self._scheduler.add(request)
        self._answers[request_id] = answer
        return request_id

    def cancel(self, request_id: RequestId) -> bool:
        """End a request; its Finished event comes with the next step. False if it is not here."""
        return request_id in self._answers and self._scheduler.cancel(request_id)

    def step(self) -> list[Event]:
        """Run one step, and return its events in order: Tokens, then Finished ones.

        A request whose own logits or options make a draw impossible ends with reason ``error``,
        and the others go on. Raises what stops all of them (DeviceError, KeyboardInterrupt,
        NumericalError in eager mode): then nothing of the step counts, and they are still there.
        Only a KeyboardInterrupt in the bookkeeping around the computation closes the engine.
        """
        self._check_open()
        self._is_computing = False
        try:
            return self._step()
        except BaseException as error:
            if self._is_computing or isinstance(error, KestrelError):
                self._scheduler.abort()
            else:
                self.close()
            raise

    def _step(self) -> list[Event]:
        scheduler, runner = self._scheduler, self._runner
        sampled: dict[RequestId, Sampled] = {}
        plan = scheduler.plan()
        if plan.chunks:
            with runner.turn:
                self._is_computing = True
                runner.run(plan.rows())
                self._is_computing = False
                sampled = self._sample(plan)
        finished = scheduler.commit(plan, {key: drawn.id for key, drawn in sampled.items()})
        ended = {event.request_id for event in finished}
        events: list[Event] = []
        for request_id, drawn in sampled.items():
            events.append(self._token(request_id, drawn, request_id in ended))
        for event in finished:
            events.append(self._finish(event))
        return events

    def events(self) -> Iterator[Event]:
        """Step until nothing is left. Closing the iterator cancels what is still running.

        Raises the error of a request that ends with reason ``error``.
        """
        try:
            while self.has_work:
                for event in self.step():
                    if isinstance(event, Finished) and event.error is not None:
                        raise event.error
                    yield event
        finally:
            self.close()

    def close(self) -> None:
        """Give the blocks of every request back; the engine is not to be used afterwards.

        Whatever state an interrupted step has left behind.
        """
        self._closed = True
        for answer in self._answers.values():
            answer.request.sequence.release()
        self._answers.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError("the engine was closed: make another with model.engine()")

    def _sample(self, plan: StepPlan) -> dict[RequestId, Sampled]:
        """A token for each request of the step that wants one."""
        sampled: dict[RequestId, Sampled] = {}
        row = 0
        for request, _, _, wants_logits in plan.chunks:
            if wants_logits == "last":
                answer = self._answers[request.id]
                try:
                    sampled[request.id] = self._draw(answer, row)
                except KestrelError as error:
                    answer.error = error
                    self._scheduler.finish(request.id, FinishReason.ERROR, str(error))
                row += 1
        return sampled

    def _draw(self, answer: _Answer, row: int) -> Sampled:
        greedy = self._runner.greedy(row)
        if answer.is_plain_greedy and answer.sampler.allows(greedy):
            return Sampled(greedy)
        u = 0.0
        if answer.seed is not None:
            # One stream for a seed, whatever else runs: an answer is what it would be alone.
            u = uniform(answer.seed, 0, len(answer.request.sequence.tokens))
        return answer.sampler.sample(self._runner.logits(row), u, answer.history)

    def _token(self, request_id: RequestId, drawn: Sampled, ended: bool) -> Token:
        answer = self._answers[request_id]
        if answer.history is not None:
            answer.history.observe(drawn.id)
        text = ""
        if drawn.id not in answer.request.stop_ids:
            text = answer.decoder.push(drawn.id)
        if ended:
            text += answer.decoder.flush()
        if answer.matcher is not None:
            text, stopped = answer.matcher.push(text)
            if stopped and not ended:
                self._scheduler.finish(request_id, FinishReason.STOP, _STOP_STRING)
            elif ended and not stopped:
                text += answer.matcher.flush()
        return Token(request_id, drawn.id, text, drawn.logprob, drawn.top)

    def _finish(self, event: Finished) -> Finished:
        answer = self._answers.pop(event.request_id)
        event = replace(event, seed=answer.seed)
        if event.reason is FinishReason.ERROR:
            return replace(event, error=answer.error or CapacityError(event.note))
        if event.reason is FinishReason.LENGTH and answer.matcher and answer.matcher.matched:
            # The last token that was allowed also completed a stop string.
            return replace(event, reason=FinishReason.STOP, note=_STOP_STRING)
        notes = [event.note, _ENDED_EARLY * answer.decoder.ended_early]
        notes.append(_INVALID * answer.decoder.invalid)
        return replace(event, note="; ".join(filter(None, notes)))


def collect(engine: Engine, order: list[RequestId]) -> list[Generation]:
    """Run an engine to its end and gather the answers to ``order``."""
    answers = {request_id: engine._answers[request_id] for request_id in order}
    tokens: dict[RequestId, list[Token]] = {request_id: [] for request_id in order}
    ends: dict[RequestId, Finished] = {}
    for event in engine.events():
        if isinstance(event, Token):
            tokens[event.request_id].append(event)
        else:
            ends[event.request_id] = event
    return [_gather(answers[key], tokens[key], ends[key]) for key in order]


def _gather(answer: _Answer, tokens: list[Token], end: Finished) -> Generation:
    wants_logprobs = answer.request.params.logprobs is not None
    return Generation(
        text="".join(token.text for token in tokens),
        ids=[token.id for token in tokens],
        prompt_ids=list(answer.request.ids),
        reason=end.reason,
        usage=end.usage,
        seed=end.seed,
        note=end.note,
        logprobs=[token.logprob for token in tokens] if wants_logprobs else None,
        top_logprobs=[token.top_logprobs for token in tokens] if wants_logprobs else None,
    )
