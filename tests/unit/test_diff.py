"""kestrel.diff and kestrel.bounds: numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from kestrel import bounds
from kestrel.bounds import KESTREL, REFERENCE, REFERENCE_FLOAT64
from kestrel.diff import compare, cosine, first_beyond, max_ulps, table
from kestrel.dump import FORMAT, Dump
from kestrel.errors import CheckpointError, HeaderError
from kestrel.stages import Stage

U = 2.0**-24


def _linear_stage(name: str, x: str) -> Stage:
    def evaluate(values, weights, how):
        return bounds.linear(values[x], weights[f"{name}.weight"], None, how)

    return Stage(name, (x,), evaluate)


def test_cosine_resolves_what_the_quotient_cannot() -> None:
    # Unit vectors at an angle of 1e-7: cosine is 1 - 5e-15 + O(1e-29).
    a, b = np.array([1.0, 0.0]), np.array([math.cos(1e-7), math.sin(1e-7)])
    assert cosine(a, b) == pytest.approx(1 - 5e-15, abs=2e-16)
    assert cosine(a, a) == 1.0
    assert cosine(a, -a) == -1.0
    assert cosine(a, np.array([0.0, 1.0])) == pytest.approx(0.0, abs=1e-15)


def test_cosine_of_zero_vectors() -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert (cosine(zero, zero), cosine(zero, one)) == (1.0, 0.0)


def test_max_ulps_counts_float32_values() -> None:
    one = np.float32(1.0)
    above = np.nextafter(one, np.float32(2))
    below = np.nextafter(one, np.float32(0))
    assert max_ulps(np.array([one]), np.array([above])) == 1
    assert max_ulps(np.array([below]), np.array([above])) == 2
    assert max_ulps(np.array([0.0]), np.array([-0.0])) == 0
    # The smallest subnormals on both sides of zero are two apart.
    tiny = np.array([2.0**-149])
    assert max_ulps(tiny, -tiny) == 2


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


def test_rotary_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="expected default, linear or llama3, found 'yarn'"):
        bounds.rotary(np.array([1]), np.array([2]), 2, {"rope_type": "yarn", "rope_theta": 1e4}, KESTREL)


def _two_linears() -> tuple[list[Stage], dict[str, np.ndarray]]:
    stages = [_linear_stage("b", "a"), _linear_stage("c", "b")]
    return stages, {"b.weight": np.array([[2.0]]), "c.weight": np.array([[1000.0]])}


def test_an_inherited_difference_is_not_a_fault() -> None:
    """b is off by 1 percent on our side; c, a thousand times it, is right for that b."""
    stages, weights = _two_linears()
    ours = {"a": np.array([[1.0]]), "b": np.array([[2.02]]), "c": np.array([[2020.0]])}
    theirs = {"a": np.array([[1.0]]), "b": np.array([[2.0]]), "c": np.array([[2000.0]])}
    rows = compare(stages, weights, [5], ours, theirs)
    assert [(row.stage, row.beyond, row.ok) for row in rows] == [
        ("b", "ours", False),
        ("c", "", True),
    ]
    assert rows[1].max_abs == pytest.approx(20.0) and rows[1].bound >= rows[1].max_abs
    assert first_beyond(rows).stage == "b"
    text = table(rows)
    assert text.splitlines()[-1] == "first stage beyond its bound: b (ours)"
    assert "BEYOND: ours" in text.splitlines()[1]


def test_without_a_stages_inputs_there_is_no_bound() -> None:
    stages, weights = _two_linears()
    side = {"c": np.array([[2000.0]])}
    (row,) = compare(stages, weights, [5], side, side)
    assert (row.bound, row.share, row.ok, row.max_ulps, row.cosine) == (None, None, True, 0, 1.0)
    assert table([row]).splitlines()[-1] == "1 stages, 0 of them bounded, none beyond its bound"


def test_a_value_that_is_not_a_number_is_beyond() -> None:
    stages, weights = _two_linears()
    theirs = {"a": np.array([[1.0]]), "b": np.array([[2.0]])}
    (row,) = compare(stages, weights, [5], {**theirs, "b": np.array([[np.nan]])}, theirs)
    assert row.beyond == "ours" and row.share == math.inf


def test_another_models_dump_is_refused() -> None:
    stages, weights = _two_linears()
    one, two = {"b": np.zeros((1, 1))}, {"b": np.zeros((1, 2))}
    with pytest.raises(HeaderError, match=r"b: the reference has shape \[1, 2\], ours is \[1, 1\]"):
        compare(stages, weights, [5], one, two)


def test_dump_round_trip(tmp_path) -> None:
    path = tmp_path / "dump.safetensors"
    logits = np.ones((2, 3), np.float32)
    save_file(
        {"token_ids": np.array([7, 8]), "lm_head": logits, "float64/lm_head": logits * 2.0},
        path,
        metadata={"format": FORMAT, "versions": '{"torch": "2.13.0"}'},
    )
    dump = Dump.read(path)
    assert dump.ids == [7, 8] and dump.versions == {"torch": "2.13.0"}
    assert list(dump.stages) == ["lm_head"] and dump.stages["lm_head"][0, 0] == 1.0
    assert list(dump.float64) == ["lm_head"] and dump.float64["lm_head"][0, 0] == 2.0


def test_what_is_not_a_dump_is_refused(tmp_path) -> None:
    path = tmp_path / "other.safetensors"
    with pytest.raises(CheckpointError, match="other.safetensors: no such file"):
        Dump.read(path)
    save_file({"lm_head": np.ones((2, 3), np.float32)}, path)
    with pytest.raises(HeaderError, match="tools/dump_reference.py"):
        Dump.read(path)
    path.write_text("<html>")
    with pytest.raises(HeaderError, match="other.safetensors: expected a safetensors file"):
        Dump.read(path)
