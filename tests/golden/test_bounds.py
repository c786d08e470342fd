"""The definitions, the bounds and the golden files, with NumPy alone.

The golden files are what transformers computed. Here they meet the definitions that Kestrel is
held to, and a forward pass with one fault at a time shows what the bounds catch.
"""

from __future__ import annotations

import numpy as np
import pytest

from golden.faults import FAULTS
from golden.numpy_decoder import forward
from golden.recipes import RECIPES, data_file, far_tables
from kestrel.bounds import KESTREL, REFERENCE
from kestrel.diff import compare, first_beyond, table
from kestrel.dump import Dump
from kestrel.stages import rope_lengths, stages_of


@pytest.fixture(scope="module")
def dumps() -> dict[str, Dump]:
    return {name: Dump.read(data_file(name)) for name in RECIPES}


def _rows(name: str, dump: Dump, ours: dict[str, np.ndarray]):
    recipe = RECIPES[name]
    stages, start = stages_of(recipe.geometry()), recipe.rotated_from
    return compare(stages, recipe.weights(), dump.ids, ours, dump.stages, decode_from=start)


@pytest.mark.parametrize("name", RECIPES)
def test_golden_file_belongs_to_its_recipe(name: str, dumps: dict[str, Dump]) -> None:
    assert dumps[name].metadata["digest"] == RECIPES[name].digest()
    assert dumps[name].ids == RECIPES[name].ids()
    assert dumps[name].versions["transformers"] == "5.24.0"


@pytest.mark.parametrize("name", RECIPES)
def test_definitions_are_those_of_transformers(name: str, dumps: dict[str, Dump]) -> None:
    """Composed in float64 from the recorded tables, they give the float64 logits of transformers.

    Both are float64: 1e-12 of the largest logit is 4,500 units of it, far above what 50 stages of
    at most 60 terms lose (each at most some 60 units of its own terms), and 50,000 times below
    float32's.
    """
    recipe, dump = RECIPES[name], dumps[name]
    lengths = rope_lengths(len(dump.ids), recipe.rotated_from)
    values = {"token_ids": np.asarray(dump.ids), "rope_lengths": lengths}
    weights = recipe.weights()
    for stage in stages_of(recipe.geometry()):
        if stage.name.startswith("model.rotary_emb"):
            values[stage.name] = dump.stages[stage.name]
        else:
            values[stage.name] = stage.evaluate(values, weights, KESTREL)[0]
    ((last, theirs),) = dump.float64.items()
    assert stage.name == last
    assert np.abs(values[last] - theirs).max() <= 1e-12 * np.abs(theirs).max()


@pytest.mark.parametrize("name", RECIPES)
def test_a_right_forward_pass_is_within_every_bound(name: str, dumps: dict[str, Dump]) -> None:
    rows = _rows(name, dumps[name], _forward(name))
    stages = stages_of(RECIPES[name].geometry())
    assert [row.stage for row in rows] == [stage.name for stage in stages]
    assert first_beyond(rows) is None, table(rows)
    assert all(row.share is not None and row.max_abs <= row.bound for row in rows)


def _forward(name: str, fault: str = "") -> dict[str, np.ndarray]:
    recipe = RECIPES[name]
    start = recipe.rotated_from
    return forward(recipe.geometry(), recipe.weights(), recipe.ids(), start, fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_stage(fault: str, dumps: dict[str, Dump]) -> None:
    """S01, S02, S04, S07, S11, S41 to S44 and others: each breaks the bound where it happens."""
    name, stage = FAULTS[fault]
    worst = first_beyond(_rows(name, dumps[name], _forward(name, fault)))
    assert worst is not None and (worst.stage, worst.beyond) == (stage, "ours")


def test_a_wrong_definition_is_laid_at_the_references_door(dumps: dict[str, Dump]) -> None:
    """When ours and the definition agree with each other and not with transformers."""
    recipe, dump = RECIPES["gqa-6-3"], dumps["gqa-6-3"]
    weights = recipe.weights()
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.gate_proj.weight"]
    ours = forward(recipe.geometry(), weights, dump.ids)
    rows = compare(stages_of(recipe.geometry()), weights, dump.ids, ours, dump.stages)
    worst = first_beyond(rows)
    assert (worst.stage, worst.beyond) == ("model.layers.1.mlp.up_proj", "the reference")


@pytest.mark.parametrize("name", RECIPES)
def test_far_rotary_tables(name: str, dumps: dict[str, Dump]) -> None:
    """S01 and S41: the definition against transformers at positions up to 131071."""
    for stage, parameters in RECIPES[name].geometry().ropes.items():
        for part, (value, bound) in zip(("cos", "sin"), far_tables(parameters, REFERENCE)):
            theirs = dumps[name].stages[f"far/{stage}.{part}"]
            assert (np.abs(theirs - value) <= bound).all()
            # The bound still means something: a bfloat16 angle is off by up to 256 radians there.
            assert bound.max() < 0.1
