"""Ways to run the same tokens, and the logits that each gives, as bytes."""

from __future__ import annotations

from collections.abc import Sequence as AbstractSequence

import numpy as np

import kestrel
from kestrel.cache.sequence import Sequence
from kestrel.engine.request import Finished

__all__ = [
    "GREEDY", "PROMPT_TEXT",
    "alone", "cold", "continuation", "long_prompt", "preempted", "together",
]  # fmt: skip

PROMPT_TEXT = (
    "Once upon a time there lived in a small house at the edge of the forest a poor woodcutter and "
    "his wife, who had seven children. The youngest was so small that they called him Thumbling; "
    "but he was wise, and when he heard what his parents said in the night he rose, and went out, "
    "and filled his pockets with white pebbles from the brook."
)

GREEDY = kestrel.SamplingParams(temperature=0.0, max_tokens=12)


def long_prompt(model: "kestrel.Model", length: int) -> list[int]:
    """``length`` ids of running text."""
    ids = model.encode(PROMPT_TEXT)
    return (ids * (length // len(ids) + 1))[:length]


def continuation(count: int) -> list[int]:
    """Ids to feed after a prompt, the same whatever the model says."""
    return [(37 * i + 5) % 60 for i in range(count)]


def cold(model: "kestrel.Model") -> None:
    """Make the cache forget every prefix."""
    model.pool.release(model.pool.allocate(model.pool.available))
    assert model.pool.cached == 0


def alone(
    model: "kestrel.Model", ids: list[int], chunk: int | None = None, new: int = 4
) -> list[bytes]:
    """Logits after the prompt and after each of ``new`` tokens fed one by one, in a session."""
    session = model.session()
    rows = [session.prefill(ids, chunk=chunk)]
    rows += [session.decode(token) for token in continuation(new)]
    return [row.tobytes() for row in rows]


def together(
    model: "kestrel.Model", prompts: AbstractSequence[list[int]], new: int = 4
) -> list[list[bytes]]:
    """As ``alone`` for each prompt, all of them in every step as long as they have tokens left."""
    runner = model.runner
    sequences = [Sequence(model.pool, ids) for ids in prompts]
    rows: list[list[bytes]] = [[] for _ in prompts]
    try:
        for sequence in sequences:
            for token in continuation(new):
                sequence.append(token)
            sequence.reserve(len(sequence.tokens))
        while any(len(found) <= new for found in rows):
            step = []
            for index, (sequence, ids) in enumerate(zip(sequences, prompts)):
                if len(rows[index]) <= new:
                    length = max(len(ids) - sequence.computed, 1)
                    step.append((index, (sequence, sequence.computed, length, "last")))
            with runner.turn:
                runner.run([row for _, row in step])
                for place, (index, (sequence, _, length, _)) in enumerate(step):
                    rows[index].append(np.array(runner.logits(place)).tobytes())
                    sequence.advance(length)
    finally:
        for sequence in sequences:
            sequence.release()
    return rows


def preempted(
    model: "kestrel.Model",
    prompts: AbstractSequence[list[int]],
    params: kestrel.SamplingParams,
) -> list[list[kestrel.Token]]:
    """What requests side by side say in a cache too small for them, so that some begin anew."""
    engine = model.engine()
    order = [engine.add(ids, params) for ids in prompts]
    requests = [engine._answers[key].request for key in order]
    tokens: dict[int, list[kestrel.Token]] = {key: [] for key in order}
    for event in engine.events():
        if not isinstance(event, Finished):
            tokens[event.request_id].append(event)
    assert sum(request.preemptions for request in requests) >= 2
    model.pool.check(owners=[])
    return [tokens[key] for key in order]
