"""score: log-probabilities of a given text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from api.runs import cold, long_prompt

import kestrel
from kestrel import Limits
from kestrel.errors import CapacityError, RequestError


def by_session(model, ids: list[int]) -> list[float]:
    """log-softmax of the session's logits, in float64, by its definition."""
    session, scores = model.session(), []
    for token, target in zip(ids, ids[1:]):
        wide = session.decode(token).astype(np.float64)
        norm = wide.max() + math.log(math.fsum(np.exp(wide - wide.max())))
        scores.append(wide[target] - norm)
    return scores


@pytest.mark.parametrize("length", [2, 16, 63, 64, 65, 66, 130])
def test_score_is_the_log_softmax_of_the_logits(model, length):
    ids = long_prompt(model, length)
    scores = model.score(ids)
    assert len(scores) == length - 1 and max(scores) < 0
    # Each of 4096 terms is rounded once, the sum at most 4096 times, the logarithm once.
    assert np.abs(np.array(scores) - by_session(model, ids)).max() < 4100 * 2.0**-53


def test_score_does_not_depend_on_the_cache_or_the_step(model):
    ids = long_prompt(model, 100)
    expected = model.score(ids)
    assert model.score(ids) == expected, "blocks of the prefix are in the cache now"
    cold(model)
    with kestrel.load(threads=1, limits=Limits(max_tokens=64, max_seqs=1)) as other:
        assert other.score(ids) == expected


def test_text_is_encoded_as_a_prompt(model):
    text = "Once upon a time"
    assert model.score(text) == model.score(model.encode(text))


def test_what_cannot_be_scored(model):
    with pytest.raises(RequestError, match="at least 2 tokens, found 1"):
        model.score([5])
    with pytest.raises(RequestError, match="1025 tokens: the context limit is 1024"):
        model.score(long_prompt(model, 1025))
    with pytest.raises(RequestError, match="token id 4096"):
        model.score([1, 4096])
    with pytest.raises(RequestError, match="expected text or a list of token ids"):
        model.score(7)
    assert len(model.score(long_prompt(model, 1024))) == 1023


def test_a_full_cache(loaded):
    with kestrel.load(
        threads=1, limits=Limits(max_context=64, max_seqs=1, cache_bytes=2 * 98_304)
    ) as model:
        session = model.session()
        session.prefill([1, 2, 3])
        with pytest.raises(CapacityError, match="2 more blocks"):
            model.score(long_prompt(model, 32))
        assert len(model.score(long_prompt(model, 16))) == 15
        session.decode(4)
