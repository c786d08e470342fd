"""SamplingParams: every option refused by name, with what was expected and found."""

import math
import pickle

import numpy as np
import pytest

from kestrel.errors import RequestError
from kestrel.sampling.params import SamplingParams

NAN, INF = math.nan, math.inf

REFUSED = {
    "max_tokens": [0, -1, 1.0, "5", True],
    "temperature": [-1, -1e-30, NAN, INF, "0.7", True, None, 10**400],
    "top_k": [-1, 1.5, "40", True, None],
    "top_p": [-0.1, 1.1, NAN, INF, "0.9", False],
    "min_p": [-0.1, 1.0001, NAN, "0", True],
    "repetition_penalty": [0, 0.0, -1.0, 1e-300, 1e300, NAN, INF, "1.1", True],
    "presence_penalty": [1e39, -1e39, NAN, INF, -INF, "0", True],
    "frequency_penalty": [NAN, INF, -INF, "0", True],
    "logit_bias": [[(1, 2.0)], {"1": 2.0}, {-1: 2.0}, {1: NAN}, {1: INF}, {1: "2"}, {True: 1.0}],
    "seed": [-1, 2**64, 1.0, "7", True],
    "stop": ["end", [""], [b"end"], [1], None],
    "stop_token_ids": [3, "3", [-1], [1.0], [True]],
    "ignore_eos": [1, "yes", None],
    "logprobs": [-1, 2.0, "3", True],
    "logprobs_after_sampling": [0, "no"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_wrong_values_are_refused_by_name(name, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"sampling option {name}")
    assert "expected" in message and "found" in message


def test_every_option_is_covered_above():
    assert set(REFUSED) == set(SamplingParams.__dataclass_fields__)


def test_message_in_full():
    with pytest.raises(RequestError) as caught:
        SamplingParams(top_k=-1)
    assert str(caught.value) == (
        "sampling option top_k: expected an integer of at least 0 (0 turns it off), found -1"
    )


def test_edges_are_accepted_and_normalised():
    params = SamplingParams(
        temperature=0,
        top_k=np.int64(5),
        top_p=np.float32(0.5),
        logit_bias={np.int32(3): -INF, 4: 1},
        stop=["a", "b"],
        stop_token_ids=[np.int64(2)],
        seed=2**64 - 1,
    )
    assert params.temperature == 0.0 and type(params.temperature) is float
    assert params.top_k == 5 and type(params.top_k) is int
    assert params.top_p == 0.5 and type(params.top_p) is float
    assert params.logit_bias == {3: -INF, 4: 1.0}
    assert params.stop == ("a", "b") and params.stop_token_ids == (2,)
    SamplingParams(top_p=0, min_p=1, top_k=10**9)


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 1e-30}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
        ({"top_k": 2}, False),
        ({}, False),
    ],
)
def test_is_greedy(options, greedy):
    assert SamplingParams(**options).is_greedy is greedy


def test_replace_validates_and_names_unknown_options():
    params = SamplingParams(temperature=0.5)
    assert params.replace(top_k=3) == SamplingParams(temperature=0.5, top_k=3)
    assert params == SamplingParams(temperature=0.5)
    with pytest.raises(RequestError, match="top_k"):
        params.replace(top_k=-3)
    with pytest.raises(RequestError, match="'temprature' does not exist: did you mean 'temper"):
        params.replace(temprature=1)


def test_immutable_hashable_and_picklable():
    params = SamplingParams(logit_bias={1: 2.0})
    with pytest.raises(AttributeError):
        params.top_k = 3
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2.0}))
    assert pickle.loads(pickle.dumps(params)) == params


def test_the_callers_mapping_may_change_afterwards():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 5.0
    assert params.logit_bias == {1: 2.0}
