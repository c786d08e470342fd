"""Which tokens of which requests are computed in the next step.

One rule: a request has *computed* positions and *wanted* tokens, and every step hands out up to
``max_tokens`` of the differences: running requests first, oldest first, then waiting ones while
blocks last. There is no prefill or decode phase. If a block is missing, the youngest running
request gives its blocks back and waits at the front of the queue; it keeps its tokens, and its
keys and values are computed again. Requests therefore run in the order of their ids, the oldest
one advances in every step, and nobody starves. A running request whose sequence starts anew
(`BlockPool.restarts`) stays among the running, and computes in chunks what it has lost.

How a request ends is the same under any load: with a token of its ``stop_ids`` (which is kept), at
its ``max_tokens``, at ``max_context`` tokens (prompt and generated ones together; the last is
given out but never fed back, as in Hugging Face's ``generate(max_length=max_context)``), or when
the whole cache holds nothing but this request: one token after ``num_blocks * block_size``
positions (never, if the model's window and a block fit in).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from kestrel.cache.block_pool import BlockPool
from kestrel.cache.sequence import Sequence, blocks_needed
from kestrel.engine.plan import Chunk, StepPlan
from kestrel.engine.request import FinishReason, Finished, Request, RequestId, RequestState
from kestrel.errors import CapacityError, ConfigError

__all__ = ["Scheduler"]

_RUNNING = RequestState.RUNNING


class Scheduler:
    """Plans steps over requests that share a pool of cache blocks. Belongs to one thread.

    The caller loops: ``plan()``, run its chunks unless there are none, ``commit()``; or ``abort()``
    if the step failed or was interrupted.

    Args:
        pool: the blocks; others may hold some, too.
        max_tokens: tokens in one step, at least ``max_seqs``, so that every running request can
            advance in every step.
        max_seqs: requests that run at the same time.
        max_context: tokens of one request, prompt and generated ones together.
        vocab_size: prompts with an id outside 0..vocab_size-1 are refused.
        clock: seconds, for `Usage`.
    """

    def __init__(
        self, pool: BlockPool, max_tokens: int, max_seqs: int, max_context: int, vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        if not 1 <= max_seqs <= max_tokens:
            raise ConfigError(
                f"Limits: expected 1 <= max_seqs <= max_tokens, because every running sequence "
                f"computes at least one token in a step; found max_seqs {max_seqs} and "
                f"max_tokens {max_tokens}",
                key="max_seqs",
            )
        self.pool = pool
        self.max_tokens = max_tokens
        self.max_seqs = max_seqs
        self.max_context = max_context
        self.vocab_size = vocab_size
        self.running: list[Request] = []  # ids ascending, all below those of the waiting
        self.waiting: deque[Request] = deque()
        self._clock = clock
        self._requests: dict[RequestId, Request] = {}
        self._last_id = 0
        self._plan: StepPlan | None = None  # planned, not committed: may be on the device
        self._ending: list[tuple[Request, FinishReason, str]] = []  # once that plan is through
        self._finished: list[Finished] = []  # for the next commit to return
        self._refused_headroom: int | None = None

    @property
    def has_work(self) -> bool:
        """Whether another plan and commit would do anything."""
        return bool(self._requests or self._finished)

    def add(self, request: Request) -> RequestId:
        """Queue a request and return its id.

        Raises:
            RequestError: see `Request.check`.
            CapacityError: the whole cache is too small for the prompt and one token.
        """
        request.check(self.max_context, self.vocab_size)
        ids, size, blocks = request.ids, self.pool.block_size, self.pool.num_blocks
        needed = blocks_needed(len(ids) + 1, size, self.pool.window)
        if needed > blocks:
            raise CapacityError(
                f"the prompt of {len(ids)} tokens and one more need {needed} blocks of {size} "
                f"positions, and the whole KV cache has {blocks}: shorten the prompt or raise "
                f"{self.pool.limit}"
            )
        self._last_id += 1
        request.id = self._last_id
        request.sequence = Sequence(self.pool, ids)
        request.added_at = self._clock()
        self._requests[request.id] = request
        self.waiting.append(request)
        return request.id

    def cancel(self, request_id: RequestId) -> bool:
        """End a request with reason "cancelled"; False if it is unknown or has ended already."""
        return self.finish(request_id, FinishReason.CANCELLED)

    def finish(self, request_id: RequestId, reason: FinishReason, note: str = "") -> bool:
        """End a request for a reason that only the caller can see, such as a stop string.

        Its `Finished` comes from the next commit. If a step is on the device, the blocks are kept
        until then, and the step's token for this request is dropped.
        """
        request = self._requests.get(request_id)
        if request is None:
            return False
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
            self._refused_headroom = None
            self._end(request, reason, note)
        else:
            self._ending.append((request, reason, note))
            if self._plan is None:
                self._settle()
        return True

    def plan(self) -> StepPlan:
        """Choose the chunks of the next step and reserve blocks for them."""
        self._settle()
        chunks: list[Chunk] = []
        budget, running = self.max_tokens, self.running
        i = 0
        # Whoever wants much leaves a token for each behind it: so the budget lasts for all. Only a
        # sequence that starts anew and the last one want much: another was only ever started behind
        # one when budget and cache covered all that it wanted.
        while i < len(running):
            request = running[i]
            sequence = request.sequence
            if not sequence.blocks:
                sequence.adopt_prefix()
            start = sequence.computed
            length = wanted = len(sequence.tokens) - start
            if wanted > 1:
                length = sequence.fitting(min(wanted, budget - (len(running) - 1 - i)))
            if not (sequence.try_reserve(length) or self._make_room(request, length)):
                break
            chunks.append(Chunk(request, start, length, "last" if length == wanted else "none"))
            budget = budget - length if length == wanted else len(running) - 1 - i
            i += 1
        if self.waiting and budget:
            self._start(chunks, budget)
        self._plan = StepPlan(chunks)
        return self._plan

    def commit(self, plan: StepPlan, tokens: Mapping[RequestId, int]) -> list[Finished]:
        """Account for a step that ran, and return what has ended since the last commit.

        Args:
            plan: the latest plan, else ValueError.
            tokens: the sampled token of every request whose chunk wanted logits.
        """
        if plan is not self._plan:
            raise ValueError("only the latest plan can be committed, and only once")
        self._plan = None
        self._settle()
        for request, _, length, wants_logits in plan.chunks:
            if request.state is not _RUNNING:
                continue  # ended while the step ran
            request.sequence.advance(length)
            if wants_logits == "last":
                self._append(request, tokens[request.id])
        if not self._finished:
            return []
        self._drop_finished()
        finished, self._finished = self._finished, []
        return finished

    def abort(self) -> None:
        """Give up the latest plan, whose step did not run through: nothing of it counts.

        Its positions are computed again. The requests stay; `finish` those that shall not.
        """
        self._plan = None
        self._settle()

    def _append(self, request: Request, token: int) -> None:
        tokens = request.sequence.tokens
        request.sequence.append(token)
        if request.first_token_at is None:
            request.first_token_at = self._clock()
        if token in request.stop_ids:
            self._end(request, FinishReason.STOP)
        elif len(tokens) - len(request.ids) == request.max_tokens:
            self._end(request, FinishReason.LENGTH)
        elif len(tokens) >= self.max_context:
            note = f"the context limit of {self.max_context} tokens is reached"
            self._end(request, FinishReason.LENGTH, note)

    def _make_room(self, request: Request, length: int) -> bool:
        """Preempt from the youngest on until ``request`` has its blocks; False if it had to go."""
        while True:
            victim = self.running.pop()
            if victim is request and not self.running:
                self._end_full(request)
                return False
            victim.sequence.release()
            victim.state = RequestState.WAITING
            victim.preemptions += 1
            self.waiting.appendleft(victim)
            self._refused_headroom = None
            if victim is request:
                return False
            if request.sequence.try_reserve(length):
                return True

    def _start(self, chunks: list[Chunk], budget: int) -> None:
        """Let waiting requests run, in their order, while budget and blocks last."""
        running, pool = self.running, self.pool
        while self.waiting and budget and len(running) < self.max_seqs:
            # A block is kept back for each running request, so that the newcomer is not thrown out
            # in the next steps. Looking again is pointless until there is more room than last time.
            headroom = pool.available - len(running)
            refused = self._refused_headroom
            if running and refused is not None and headroom <= refused:
                return
            request = self.waiting[0]
            sequence = request.sequence
            cached = sequence.adopt_prefix()
            start = sequence.computed
            wanted = len(sequence.tokens) - start
            ahead = sequence.ahead(wanted, self.max_tokens)
            kept_back = sequence.missing(ahead) + len(running) if running else 0
            if pool.available < kept_back or not sequence.try_reserve(ahead):
                sequence.release()
                if running:
                    self._refused_headroom = headroom
                    return
                self.waiting.popleft()
                self._end_full(request)
                continue
            self.waiting.popleft()
            self._refused_headroom = None
            running.append(request)
            request.state = _RUNNING
            if request.started_at is None:
                request.started_at = self._clock()
                request.cached_tokens = cached
            length = sequence.fitting(min(wanted, budget))
            chunks.append(Chunk(request, start, length, "last" if length == wanted else "none"))
            budget = budget - length if length == wanted else 0

    def _end_full(self, request: Request) -> None:
        """End a request for which the cache has no room, although no other runs."""
        pool = self.pool
        note = (
            f"the KV cache is full: {pool.num_blocks - pool.available} of {pool.num_blocks} blocks "
            f"of {pool.block_size} positions are in use: raise {pool.limit}"
        )
        reason = FinishReason.LENGTH if request.completion_tokens else FinishReason.ERROR
        self._end(request, reason, note)

    def _end(self, request: Request, reason: FinishReason, note: str = "") -> None:
        request.sequence.release()
        request.state = RequestState.FINISHED
        del self._requests[request.id]
        self._finished.append(Finished(request.id, reason, request.usage(self._clock()), note))

    def _settle(self) -> None:
        """End the requests that `finish` had to leave until their step was through."""
        if self._ending:
            for request, reason, note in self._ending:
                if request.state is not RequestState.FINISHED:
                    self._end(request, reason, note)
            self._ending.clear()
            self._drop_finished()

    def _drop_finished(self) -> None:
        self.running[:] = [r for r in self.running if r.state is _RUNNING]
