"""kestrel.diff: numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from kestrel import bounds
from kestrel.diff import compare, cosine, first_beyond, max_ulps, table
from kestrel.dump import FORMAT, Dump
from kestrel.errors import CheckpointError, HeaderError
from kestrel.stages import Stage


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
