"""Runs that want every row: scores of a text, and traces of its stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy

from kestrel.cache.sequence import Sequence
from kestrel.engine.step import check_ids
from kestrel.errors import RequestError
from kestrel.program.trace import Trace
from kestrel.sampling.transforms import log_sum_exp

if TYPE_CHECKING:
    from kestrel.cache.block_pool import BlockPool
    from kestrel.engine.runner import Runner

__all__ = ["check_prompt", "score", "trace"]


def score(runner: "Runner", pool: "BlockPool", ids: list[int]) -> list[float]:
    """log p(ids[i] | ids[:i]) for i from 1, natural logarithm, log-softmax in float64.

    Raises RequestError when ids are outside the vocabulary or do not fit the context.
    """
    check_prompt(runner, ids)
    sequence = Sequence(pool, ids)
    scores: list[float] = []
    try:
        sequence.reserve(sequence.ahead(len(ids), runner.max_logit_rows))
        while sequence.computed < len(ids):
            start = sequence.computed
            length = sequence.fitting(min(runner.max_logit_rows, len(ids) - start))
            sequence.reserve(length)
            with runner.turn:
                runner.run([(sequence, start, length, "all")])
                sequence.advance(length)
                for row, target in enumerate(ids[start + 1 : start + length + 1]):
                    logits = runner.logits(row)  # [V]
                    scores.append(float(logits[target]) - log_sum_exp(logits))
    finally:
        sequence.release()
    return scores


def trace(
    runner: "Runner", pool: "BlockPool", prompts: list[list[int]], chunk: int
) -> list[Trace]:
    """One Trace for each prompt, all run together: up to ``chunk`` tokens of each in a step."""
    sequences = [Sequence(pool, ids) for ids in prompts]
    pieces: list[dict[str, list[numpy.ndarray]]] = [{} for _ in prompts]
    taps = runner.executable.taps
    try:
        for sequence in sequences:
            sequence.reserve(sequence.ahead(len(sequence.tokens), chunk))
        while True:
            rows, owners, used = [], [], 0
            for index, sequence in enumerate(sequences):
                left = len(sequence.tokens) - sequence.computed
                length = sequence.fitting(min(left, chunk, runner.max_tokens - used))
                if length > 0 and len(rows) < runner.max_seqs:
                    sequence.reserve(length)
                    rows.append((sequence, sequence.computed, length, "all"))
                    owners.append((index, used, length))
                    used += length
            if not rows:
                break
            with runner.turn:
                runner.run(rows)
                for index, start, length in owners:
                    sequences[index].advance(length)
                    for stage, values in taps.items():
                        copy = values[start : start + length].copy()
                        pieces[index].setdefault(stage, []).append(copy)
    finally:
        for sequence in sequences:
            sequence.release()
    return [
        Trace(ids, {stage: numpy.concatenate(parts) for stage, parts in piece.items()})
        for ids, piece in zip(prompts, pieces)
    ]


def check_prompt(runner: "Runner", ids: list[int]) -> None:
    if not ids:
        raise RequestError("no token ids: expected at least one")
    check_ids(ids, runner.program.vocab_size)
    if len(ids) > runner.max_context:
        raise RequestError(
            f"prompt of {len(ids)} tokens: the context limit is {runner.max_context}; nothing was "
            "cut or computed"
        )
