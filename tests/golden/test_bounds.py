"""The definitions, the bounds and the golden files, with NumPy alone.

The golden files are what transformers computed. Here they meet the definitions that Kestrel is
held to, and a forward pass with one fault at a time shows what the bounds catch.
"""

from __future__ import annotations

import numpy as np
import pytest

from golden.numpy_llama import FAULTS, forward
from golden.recipes import FAR_POSITIONS, RECIPES, data_file
from kestrel import bounds
from kestrel.bounds import KESTREL, REFERENCE
from kestrel.diff import compare, first_beyond, table
from kestrel.dump import Dump
from kestrel.stages import llama_stages


@pytest.fixture(scope="module")
def dumps() -> dict[str, Dump]:
    return {name: Dump.read(data_file(name)) for name in RECIPES}


def _rows(name: str, dump: Dump, ours: dict[str, np.ndarray]):
    recipe = RECIPES[name]
    return compare(llama_stages(recipe.geometry()), recipe.weights(), dump.ids, ours, dump.stages)


@pytest.mark.parametrize("name", RECIPES)
def test_golden_file_belongs_to_its_recipe(name: str, dumps: dict[str, Dump]) -> None:
    assert dumps[name].metadata["digest"] == RECIPES[name].digest()
    assert dumps[name].ids == RECIPES[name].ids()
    assert dumps[name].versions["transformers"] == "5.24.0"


@pytest.mark.parametrize("name", RECIPES)
def test_definitions_are_those_of_transformers(name: str, dumps: dict[str, Dump]) -> None:
    """Composed in float64 from the recorded tables, they give the float64 logits of transformers.

    Both are float64: 1e-12 of the largest logit is 4,500 units of it, far above what 35 stages of
    at most 60 terms lose (each at most some 60 units of its own terms), and 50,000 times below
    float32's.
    """
    recipe, dump = RECIPES[name], dumps[name]
    values = {"token_ids": np.asarray(dump.ids)}
    for stage in llama_stages(recipe.geometry()):
        if stage.name.startswith("model.rotary_emb"):
            values[stage.name] = dump.stages[stage.name]
        else:
            values[stage.name] = stage.evaluate(values, recipe.weights(), KESTREL)[0]
    theirs = dump.float64["lm_head"]
    assert np.abs(values["lm_head"] - theirs).max() <= 1e-12 * np.abs(theirs).max()


@pytest.mark.parametrize("name", RECIPES)
def test_a_right_forward_pass_is_within_every_bound(name: str, dumps: dict[str, Dump]) -> None:
    recipe = RECIPES[name]
    rows = _rows(name, dumps[name], forward(recipe.geometry(), recipe.weights(), dumps[name].ids))
    assert [row.stage for row in rows] == [s.name for s in llama_stages(recipe.geometry())]
    assert first_beyond(rows) is None, table(rows)
    assert all(row.share is not None and row.max_abs <= row.bound for row in rows)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_stage(fault: str, dumps: dict[str, Dump]) -> None:
    """S01, S02, S04, S11, S41 to S44 and others: each breaks the bound where it happens."""
    name, stage = FAULTS[fault]
    recipe = RECIPES[name]
    ours = forward(recipe.geometry(), recipe.weights(), dumps[name].ids, fault)
    worst = first_beyond(_rows(name, dumps[name], ours))
    assert worst is not None and (worst.stage, worst.beyond) == (stage, "ours")


def test_a_wrong_definition_is_laid_at_the_references_door(dumps: dict[str, Dump]) -> None:
    """When ours and the definition agree with each other and not with transformers."""
    recipe, dump = RECIPES["gqa-6-3"], dumps["gqa-6-3"]
    weights = recipe.weights()
    weights["model.layers.1.mlp.up_proj.weight"] = weights["model.layers.1.mlp.gate_proj.weight"]
    ours = forward(recipe.geometry(), weights, dump.ids)
    rows = compare(llama_stages(recipe.geometry()), weights, dump.ids, ours, dump.stages)
    worst = first_beyond(rows)
    assert (worst.stage, worst.beyond) == ("model.layers.1.mlp.up_proj", "the reference")


@pytest.mark.parametrize("name", RECIPES)
def test_far_rotary_tables(name: str, dumps: dict[str, Dump]) -> None:
    """S01 and S41: the definition against transformers at positions up to 131071."""
    geometry, stages = RECIPES[name].geometry(), dumps[name].stages
    half = geometry.head_dim // 2
    positions = np.array(FAR_POSITIONS)
    lengths = np.full_like(positions, positions.max() + 1)
    tables = bounds.rotary(positions, lengths, half, geometry.rope_parameters, REFERENCE)
    for part, (value, bound) in zip(("cos", "sin"), tables):
        theirs = stages[f"far/model.rotary_emb.{part}"]
        assert (np.abs(theirs - value) <= bound).all()
        # The bound still means something: a bfloat16 angle is off by up to 256 radians there.
        assert bound.max() < 0.1
