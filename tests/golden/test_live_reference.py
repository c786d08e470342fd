"""torch and transformers, run now: the golden files are still what they compute, and Kestrel
agrees with them on real models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kestrel
from golden.engines import ENGINES, Engine, assert_within
from golden.make_golden import SIX_TOKEN_MODELS, live, recorder
from golden.model_readme import greedy_lists, six_token_ids
from golden.recipes import RECIPES, data_file, far_tables
from golden.six_tokens import MAX_ERROR, assert_within_bars, figures
from kestrel.bounds import REFERENCE, REFERENCE_FLOAT64
from kestrel.diff import compare, compare_trace, first_beyond, table
from kestrel.dump import Dump
from kestrel.stages import stages_of

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch", reason="torch absent: pip install '.[reference]'")
transformers = pytest.importorskip("transformers", reason="transformers absent")


@pytest.fixture(scope="module")
def tool():
    torch.set_num_threads(1)
    return recorder()


@pytest.mark.parametrize("name", RECIPES)
def test_golden_files_are_what_transformers_computes(name: str, tmp_path: Path) -> None:
    """Bits may differ between machines; both runs are held to the definitions, and so is one in
    float64, 500 million times tighter."""
    recipe, dump = RECIPES[name], Dump.read(data_file(name))
    assert dump.versions["transformers"] == transformers.__version__
    assert dump.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    now, double = live(recipe, tmp_path)
    assert {f"float64/{stage}" for stage in dump.float64} | set(dump.stages) == set(now)
    stages, start = list(stages_of(recipe.geometry())), recipe.rotated_from
    theirs = dump.stages
    rows = compare(
        stages, recipe.weights(), dump.ids, now, theirs, REFERENCE, REFERENCE, decode_from=start
    )
    assert_within(rows)
    assert len(rows) == len(stages)
    how, weights = REFERENCE_FLOAT64, recipe.weights()
    rows = compare(stages, weights, dump.ids, double, double, how, how, decode_from=start)
    assert_within(rows)
    ((last, logits),) = dump.float64.items()
    # As in test_definitions_are_those_of_transformers: both differ from one value by less.
    assert np.abs(now[f"float64/{last}"] - logits).max() <= 2e-12 * np.abs(logits).max()
    for stage, parameters in recipe.geometry().ropes.items():
        for part, (value, bound) in zip(("cos", "sin"), far_tables(parameters, REFERENCE)):
            assert (np.abs(now[f"far/{stage}.{part}"] - value) <= bound).all()


@pytest.mark.parametrize("name", ["tales-15m", "stories260K", "tales-5m"])
@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[-1]], ids=str)
def test_six_tokens_live(
    name: str, engine: Engine, tool, shared_models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All stages within their bounds, and the bars of the protocol for the logits."""
    folder = shared_models / name
    ids = six_token_ids(folder)
    reference = tool.record(tool.load(folder), ids)
    with engine.load(folder) as model:
        trace = model.trace(ids)
        rows = compare_trace(trace, Dump(ids, reference), model.config, model.weights)
    with capsys.disabled():
        largest, mean, similarity = figures(trace["lm_head"], reference["lm_head"])
        print(f"\n{name} {engine}: max {largest:.2e}  mean {mean:.2e}  cosine {similarity:.15f}")
    assert first_beyond(rows) is None, table(rows)
    assert all(row.bound is not None for row in rows)
    assert_within_bars(trace["lm_head"], reference["lm_head"])


@pytest.mark.parametrize("name", SIX_TOKEN_MODELS)
def test_committed_six_token_logits(name: str, tool, shared_models: Path) -> None:
    """What is committed is what is computed here, to a tenth of the bars: another processor may
    sum in another order."""
    folder = shared_models / name
    dump = Dump.read(data_file(f"six-{name}"))
    logits = tool.record(tool.load(folder), dump.ids)["lm_head"]
    assert_within_bars(logits, dump.stages["lm_head"])


def test_the_dump_tool(tool, demo_model: Path, tmp_path: Path) -> None:
    """What the command line writes is what `kestrel diff` reads: 15 stages a layer and 5 more."""
    path = tmp_path / "dump.safetensors"
    prompt = greedy_lists(demo_model)[0]
    options = ["--prompt", prompt["prompt"], "--double", "-o", str(path)]
    assert tool.main([str(demo_model), *options]) == 0
    dump = Dump.read(path)
    assert dump.ids == prompt["prompt_ids"]
    assert set(dump.stages) == set(dump.float64) and len(dump.stages) == 6 * 15 + 5
    assert dump.versions["transformers"] == transformers.__version__
    with Engine("reference").load(demo_model) as model:
        trace = model.trace(dump.ids)
        assert set(dump.stages) <= set(trace)
        rows = compare_trace(trace, dump, model.config, model.weights)
        text = table(rows)
        assert text.splitlines()[-1] == "95 stages, 95 of them bounded, none beyond its bound"
        # The README's first-step logits are a float32 run's, printed with five decimals: as far
        # from float64 as the protocol lets float32 be, and half a unit of the last decimal.
        for token, logit in prompt["first_step_top5"]:
            assert abs(dump.float64["lm_head"][-1, token] - logit) <= MAX_ERROR + 0.5e-5
        other = Dump([1], dump.stages)
        with pytest.raises(kestrel.errors.HeaderError, match=r"the reference is of 1 ids \[1\]"):
            compare_trace(trace, other, model.config, model.weights)
