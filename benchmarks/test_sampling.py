"""Sampling: microseconds a draw, and for what reads the row, of 32,000 and 128,256 logits.

A draw reads the row at least once, so the limit is one thread's read bandwidth.
"""

from __future__ import annotations

import numpy as np
import pytest
from figures import digest

from kestrel.sampling import transforms
from kestrel.sampling.params import SamplingParams
from kestrel.sampling.rng import uniform
from kestrel.sampling.sampler import build

DRAWS = 32
SEED = 20_240_817
SEEN = list(range(100, 356))  # ids that a penalty is for
OPTIONS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 40},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "penalty": {"temperature": 0.8, "top_k": 40, "repetition_penalty": 1.1},
}
#: What the options draw from, by its name; see `row`.
CASES = [(name, "zipf") for name in OPTIONS]
CASES += [pytest.param(name, "flat", marks=pytest.mark.large) for name in ("temperature", "top_p")]


def row(vocab: int, kind: str) -> np.ndarray:
    """float32 [V]. ``zipf``: the r-th likeliest token has probability ~ r ** -1.5, as after a usual
    text; ``flat``: normal with standard deviation 3, where thousands of tokens are likely."""
    rng = np.random.default_rng(SEED)
    if kind == "flat":
        return rng.standard_normal(vocab, dtype=np.float32) * np.float32(3)
    return rng.permutation(-1.5 * np.log(np.arange(1, vocab + 1))).astype(np.float32)


def expected(logits: np.ndarray, options: dict, u: float) -> int:
    """The same draw from the whole row, sorted, in float64."""
    if "repetition_penalty" in options:
        logits = logits.copy()
        seen, penalty = logits[SEEN], np.float32(options["repetition_penalty"])
        logits[SEEN] = np.where(seen > 0, seen / penalty, seen * penalty)
    if not options["temperature"]:
        return int(logits.argmax())
    order = np.argsort(-logits, kind="stable")
    if "top_k" in options:
        order = order[: options["top_k"]]
    below = logits[order].astype(np.float64) - float(logits.max())
    weights = np.exp(below / options["temperature"])
    share = weights / weights.sum()
    if "top_p" in options:
        keep = int(np.searchsorted(np.cumsum(share), options["top_p"])) + 1
        order, share = order[:keep], share[:keep]
    if "min_p" in options:
        keep = share >= options["min_p"] * share[0]
        order, share = order[keep], share[keep]
    total = np.cumsum(share)
    return int(order[np.searchsorted(total, u * total[-1], side="right")])


@pytest.mark.parametrize("vocab", [32_000, pytest.param(128_256, marks=pytest.mark.large)])
@pytest.mark.parametrize("name, kind", CASES)
def test_draw(measure, work, name, kind, vocab):
    logits, options = row(vocab, kind), OPTIONS[name]
    sampler = build(SamplingParams(**options), vocab_size=vocab)
    history = sampler.new_history(SEEN)
    numbers = [uniform(SEED, 0, position) for position in range(DRAWS)]

    def draw() -> list[int]:
        return [sampler.sample(logits, u, history).id for u in numbers]

    def result() -> str:
        found = draw()
        assert found == [expected(logits, options, u) for u in numbers]
        return digest([repr(found)])

    measure(
        draw,
        result=result,
        count=DRAWS,
        unit="us",
        work=work(nbytes=DRAWS * logits.nbytes, footprint=logits.nbytes, threads=1),
    )


@pytest.mark.parametrize("vocab", [32_000, pytest.param(128_256, marks=pytest.mark.large)])
@pytest.mark.parametrize("k", [40, 256])
def test_top_candidates(measure, work, k, vocab):
    """The k largest logits of a row, in order."""
    logits = row(vocab, "flat")

    def result() -> str:
        found = transforms.top_candidates(logits, k).ids
        assert found.tolist() == np.argsort(-logits, kind="stable")[:k].tolist()
        return digest([repr(found.tolist())])

    measure(
        lambda: [transforms.top_candidates(logits, k) for _ in range(DRAWS)],
        result=result,
        count=DRAWS,
        unit="us",
        work=work(nbytes=DRAWS * logits.nbytes, footprint=logits.nbytes, threads=1),
    )


@pytest.mark.parametrize("vocab", [32_000, pytest.param(128_256, marks=pytest.mark.large)])
def test_mass(measure, work, vocab):
    """The sum of exp((logit - highest) / 0.8) over a row, in float64."""
    logits = row(vocab, "flat")

    def result() -> str:
        found = transforms.mass(logits, 0.8)
        exact = np.exp((logits.astype(np.float64) - float(logits.max())) / 0.8).sum()
        assert abs(found - exact) < 1e-12 * exact
        return digest([repr(found)])

    measure(
        lambda: [transforms.mass(logits, 0.8) for _ in range(DRAWS)],
        result=result,
        count=DRAWS,
        unit="us",
        work=work(nbytes=DRAWS * logits.nbytes, footprint=logits.nbytes, threads=1),
    )
