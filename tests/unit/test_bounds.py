"""kestrel.bounds: values and bounds by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from kestrel import bounds
from kestrel.bounds import KESTREL, REFERENCE, REFERENCE_FLOAT64

U = 2.0**-24


def test_gamma_counts_roundings() -> None:
    """36 terms in 16 lanes: a chain of 3, a tree of 4; in unknown order: 36."""
    assert KESTREL.gamma(36, 1) == pytest.approx(8 * U, rel=1e-6)
    assert REFERENCE.gamma(36, 1) == pytest.approx(37 * U, rel=1e-5)
    assert KESTREL.gamma(0, 2) == pytest.approx(2 * U, rel=1e-6)
    assert REFERENCE_FLOAT64.gamma(36, 1) < 37 * 3.1 * 2.0**-53


def test_linear_bound_by_hand() -> None:
    x, weight = np.array([[1.0, -2.0]]), np.array([[3.0, 4.0], [0.5, -0.5]])
    value, bound = bounds.linear(x, weight, np.array([1.0, 10.0]), KESTREL)
    assert value.tolist() == [[-4.0, 11.5]]
    # |x| @ |w|.T + |b| = 12 and 11.5; 1 link, 4 joins, 1 product, 1 bias = 7 roundings.
    assert bound[0] == pytest.approx([12 * 7 * U, 11.5 * 7 * U], rel=1e-5)


def test_rms_norm_by_hand() -> None:
    value, bound = bounds.rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0, KESTREL)
    root = math.sqrt(12.5)
    assert value[0] == pytest.approx([3 / root, 8 / root])
    # (1 link + 4 joins + 4) / 2 + 4 roundings.
    assert bound[0] == pytest.approx(value[0] * 8.5 * U, rel=1e-5)


def test_rms_norm_with_an_offset_over_each_head() -> None:
    """Gemma's 1 + w; two heads of two columns share one weight."""
    x, weight = np.array([[3.0, 4.0, 0.0, 2.0]]), np.array([0.0, -0.5])
    value, bound = bounds.rms_norm(x, weight, 0.0, KESTREL, offset=1.0)
    one, two = math.sqrt(12.5), math.sqrt(2.0)
    assert value[0] == pytest.approx([3 / one, 2 / one, 0.0, 1 / two])
    # As above with one more rounding, that of 1 + w.
    assert bound[0] == pytest.approx(value[0] * 9.5 * U, rel=1e-5)


def test_a_factor_of_one_rounds_nothing() -> None:
    x = np.array([[3.0]])
    assert bounds.scaled(x, 1.0, KESTREL)[1].tolist() == [[0.0]]
    # 0.5 is a float32 value: one rounding; 0.1 is none: two.
    assert bounds.scaled(x, 0.5, KESTREL)[1][0, 0] == pytest.approx(1.5 * U, rel=1e-5)
    assert bounds.scaled(x, 0.1, KESTREL)[1][0, 0] == pytest.approx(0.3 * 2 * U, rel=1e-5)


def test_residual_with_a_multiplier_by_hand() -> None:
    value, bound = bounds.residual(np.array([[1.0]]), np.array([[2.0]]), KESTREL, 0.25)
    assert value.tolist() == [[1.5]]
    assert bound[0, 0] == pytest.approx((0.5 + 1.5) * U, rel=1e-5)


def test_soft_cap_by_hand() -> None:
    """30 tanh(60 / 30); logits that are divided alone; a value far above the cap."""
    value, bound = bounds.soft_cap(np.array([[60.0, 1e9]]), 1.0, 30.0, KESTREL)
    assert value[0] == pytest.approx([30 * math.tanh(2), 30.0])
    assert bound[0] == pytest.approx(value[0] * (5 + 2) * U, rel=1e-5)
    value, bound = bounds.soft_cap(np.array([[60.0]]), 1 / 16, None, KESTREL)
    assert value[0, 0] == 3.75 and bound[0, 0] == pytest.approx(3.75 * 3 * U, rel=1e-5)


def test_geglu_by_hand() -> None:
    """gelu(1) = 0.841192 in its tanh form; 0 and both ends."""
    gate = np.array([[1.0, 0.0, 1000.0, -1000.0, -1e30, 3e38]])
    value, bound = bounds.geglu(gate, np.full((1, 6), 3.0), KESTREL)
    one = 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))
    assert one == pytest.approx(0.841192, abs=5e-7)
    assert value[0] == pytest.approx([3 * one, 0.0, 3000.0, 0.0, 0.0, 9e38], rel=1e-15)
    assert np.isfinite(bound).all() and (bound < 40 * U * np.abs(3 * gate) + 1e-30).all()


def test_the_bound_of_geglu_holds_where_tanh_is_near_minus_one() -> None:
    """1 + tanh keeps few digits there: float32 arithmetic as the reference does it."""
    gate = np.linspace(-7, 7, 100_001, dtype=np.float32)[None]
    one = np.float32(1)
    inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate * gate * gate)
    computed = np.float32(0.5) * gate * (one + np.tanh(inner))
    other = gate / (one + np.exp(np.float32(-2) * inner))  # what it is as well
    value, bound = bounds.geglu(gate, np.ones_like(gate), replace(KESTREL, tanh_ulps=2))
    for each in (computed, other):
        share = np.abs(each - value) / bound
        assert 0.1 < share.max() <= 1.0


def test_attention_with_a_window() -> None:
    """Equal scores: the mean of the last two values, from position 2 on without the first."""
    q, k = np.zeros((4, 1)), np.zeros((4, 1))
    v = np.array([[1.0], [3.0], [5.0], [9.0]])
    value, _ = bounds.attention(q, k, v, 1, 1, KESTREL, window=2)
    assert value[:, 0].tolist() == [1.0, 2.0, 4.0, 7.0]


def test_attention_with_capped_scores() -> None:
    """Scores 8 and 0 at half scale, capped at 2: 2 tanh(4 / 2) against 0."""
    q, k = np.array([[0.0], [1.0]]), np.array([[8.0], [0.0]])
    value, capped = bounds.attention(
        q, k, np.array([[1.0], [0.0]]), 1, 1, KESTREL, scale=0.5, cap=2.0
    )
    share = 1 / (1 + math.exp(-2 * math.tanh(2)))
    assert value[1, 0] == pytest.approx(share, rel=1e-15)
    _, plain = bounds.attention(q, k, np.array([[1.0], [0.0]]), 1, 1, KESTREL, scale=0.5)
    assert (capped[1] > plain[1] * 0.1).all() and (capped < 100 * U).all()


def test_a_float16_cache_rounds_keys_and_values() -> None:
    v = np.array([[1.0 + 2.0**-12]])
    half = replace(KESTREL, cache=np.float16)
    value, _ = bounds.attention(np.zeros((1, 1)), np.zeros((1, 1)), v, 1, 1, half, window=1)
    assert value.tolist() == [[1.0]]


def test_rope_by_hand() -> None:
    """S42: position angle 90 degrees turns (a, b) into (-b, a), a and b the halves of a head."""
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    value, _ = bounds.rope(x, np.zeros((1, 2)), np.ones((1, 2)), 1, KESTREL)
    assert value.tolist() == [[-3.0, -4.0, 1.0, 2.0]]


def test_attention_by_hand() -> None:
    """S43: equal scores average what is visible; query heads 0, 1 read kv head 0, 2, 3 read 1."""
    q, k = np.zeros((2, 4)), np.zeros((2, 2))
    v = np.array([[1.0, 10.0], [3.0, 30.0]])
    value, bound = bounds.attention(q, k, v, 4, 2, KESTREL)
    assert value.tolist() == [[1.0, 1.0, 10.0, 10.0], [2.0, 2.0, 20.0, 20.0]]
    assert (bound > 0).all() and (bound < 40 * U * value).all()


def test_attention_weighs_by_softmax() -> None:
    """Scores log 3 and 0 for a head_dim of 1 give weights 3/4 and 1/4."""
    q, k = np.array([[0.0], [1.0]]), np.array([[math.log(3)], [0.0]])
    value, _ = bounds.attention(q, k, np.array([[8.0], [0.0]]), 1, 1, KESTREL)
    assert value[1, 0] == pytest.approx(6.0, rel=1e-15)


def test_swiglu_at_the_ends() -> None:
    gate = np.array([[0.0, 1000.0, -1000.0, math.log(2)]])
    value, _ = bounds.swiglu(gate, np.full((1, 4), 3.0), KESTREL)
    assert value[0] == pytest.approx([0.0, 3000.0, 0.0, 2 * math.log(2)])


def test_rotary_types_by_hand() -> None:
    """Frequencies 1 and 0.01 at position 1; llama3 leaves, blends and divides."""
    default = {"rope_type": "default", "rope_theta": 1e4}
    linear = {**default, "rope_type": "linear", "factor": 4.0}
    llama3 = {
        **default,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 3.0,
        # L / wavelength is 200 and 2: the fast one stays, the slow one is halfway blended.
        "original_max_position_embeddings": 400 * math.pi,
    }
    for parameters, expected in (
        (default, [1.0, 0.01]),
        (linear, [0.25, 0.0025]),
        (llama3, [1.0, 0.01 * (0.5 + 0.5 / 8)]),
    ):
        (cos, _), (sin, _) = bounds.rotary(np.array([1]), np.array([2]), 2, parameters, KESTREL)
        assert cos[0] == pytest.approx(np.cos(expected), rel=1e-15)
        assert sin[0] == pytest.approx(np.sin(expected), rel=1e-15)


def test_dynamic_by_hand() -> None:
    """D = 4: theta is multiplied by the square of 3 * 16 / 8 - 2 = 4, beyond 8 tokens."""
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
    parameters |= {"max_position_embeddings": 8}
    lengths = np.array([8, 16])
    (cos, _), _ = bounds.rotary(np.array([7, 15]), lengths, 2, parameters, KESTREL)
    assert cos[0] == pytest.approx(np.cos([7.0, 0.07]), rel=1e-14)
    assert cos[1] == pytest.approx(np.cos([15.0, 15 * 0.0025]), rel=1e-14)


def test_longrope_by_hand() -> None:
    """From 9 tokens on the long factors; 64 positions after 8 stretch by the root of 2."""
    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "max_position_embeddings": 64}
    parameters |= {"original_max_position_embeddings": 8}
    parameters |= {"short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
    _, (sin, bound) = bounds.rotary(np.array([7, 8]), np.array([8, 9]), 2, parameters, KESTREL)
    root = math.sqrt(2)
    assert sin[0] == pytest.approx(root * np.sin([7.0, 0.07 / 2]), rel=1e-14)
    assert sin[1] == pytest.approx(root * np.sin([8 / 4, 0.08 / 8]), rel=1e-14)
    assert (0 < bound).all() and (bound < 100 * U).all()


def test_yarn_by_hand() -> None:
    """Dimension 0 turns 100 times within the original length and stays, 1 turns once: divided."""
    parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8, "beta_fast": 100}
    parameters |= {"original_max_position_embeddings": 200 * math.pi, "truncate": False}
    parameters |= {"max_position_embeddings": 1 << 20}
    for extra, stretch in (
        ({}, 0.1 * math.log(8) + 1),
        ({"attention_factor": 0.5}, 0.5),
        ({"mscale": 2, "mscale_all_dim": 1}, (0.2 * math.log(8) + 1) / (0.1 * math.log(8) + 1)),
    ):
        (cos, _), _ = bounds.rotary(
            np.array([3]), np.array([4]), 2, {**parameters, **extra}, KESTREL
        )
        assert cos[0] == pytest.approx(stretch * np.cos([3.0, 0.03 / 8]), rel=1e-12)


def test_yarn_divides_all_where_the_ramp_begins_after_the_last_dimension() -> None:
    """It begins at 8 log10(10 ** 1.75 * 64 pi / 64 pi) / 2 = 7 and a little, and ends at 7."""
    parameters = {"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0, "truncate": False}
    parameters |= {"original_max_position_embeddings": 64 * math.pi * 10**1.751}
    parameters |= {"max_position_embeddings": 1 << 20, "attention_factor": 1.0}
    (cos, bound), _ = bounds.rotary(np.array([4]), np.array([5]), 4, parameters, KESTREL)
    assert cos[0] == pytest.approx(np.cos(10.0 ** (-np.arange(4) / 4)), rel=1e-14)
    assert (bound >= 4 * U).all()


def test_rotary_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of default, .*, found 'su'"):
        parameters = {"rope_type": "su", "rope_theta": 1e4}
        bounds.rotary(np.array([1]), np.array([2]), 2, parameters, KESTREL)
