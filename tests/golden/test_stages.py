"""Every stage of every recipe, at all positions, on every backend and instruction set.

The golden files are what transformers computed. Prefill whole, in chunks of 1 (token by token), 7
and 64, and in a ragged batch; on the cpu backend all of these are the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from golden.engines import (
    ENGINES,
    ISAS,
    Engine,
    Folders,
    assert_within,
    held_to_definition,
    same_bits,
    trace_of,
)
from golden.recipes import RECIPES, data_file
from kestrel.bounds import KESTREL
from kestrel.diff import compare
from kestrel.dump import Dump
from kestrel.stages import stages_of

CHUNKS = (1, 7, 64)
engines = pytest.mark.parametrize("engine", ENGINES, ids=str)
recipes = pytest.mark.parametrize("name", RECIPES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("recipes"))


@lru_cache(maxsize=None)
def golden(name: str) -> Dump:
    return Dump.read(data_file(name))


def rows_of(name: str, trace, cache: type | None = None):
    ours, theirs, recipe = replace(KESTREL, cache=cache), golden(name).stages, RECIPES[name]
    stages = list(stages_of(recipe.geometry()))
    rows = compare(
        stages, recipe.weights(), trace.ids, trace, theirs, ours, decode_from=recipe.decode_from
    )
    assert [row.stage for row in rows] == [stage.name for stage in stages]
    return rows


@engines
@recipes
def test_every_stage_at_all_positions(name: str, engine: Engine, folders: Folders) -> None:
    """Whole, chunked, token by token and batched, each within the bound of each stage."""
    recipe, ids = RECIPES[name], golden(name).ids
    start = ids[: recipe.decode_from]
    with engine.load(folders[name]) as model:
        whole = trace_of(model, recipe)
        chunked = [trace_of(model, recipe, chunk) for chunk in CHUNKS]
        batched = model.trace([ids[::-1][:3], start, ids[5:], ids[:1]])[1]
    assert whole.ids == ids and batched.ids == start
    assert_within(rows_of(name, whole))
    for trace in (*chunked, batched):
        assert all(same_bits(trace[stage], whole[stage][: len(trace.ids)]) for stage in whole)


@engines
@recipes
def test_the_untraced_program_gives_the_traced_logits(
    name: str, engine: Engine, folders: Folders
) -> None:
    """A traced program records sums unfolded: prefill and decode must agree with it."""
    recipe, ids = RECIPES[name], golden(name).ids
    # Frequencies that follow the length of the sequence follow that of its first call.
    start = recipe.decode_from or (len(ids) if recipe.follows_length else 9)
    with engine.load(folders[name]) as model:
        trace = trace_of(model, recipe)
        session = model.session()
        rows = [session.prefill(ids[:start]), *(session.decode(token) for token in ids[start:])]
    traced = trace["logits" if "logits" in trace else "lm_head"]
    assert all(same_bits(logits, row) for logits, row in zip(rows, traced[start - 1 :]))


@recipes
def test_every_instruction_set_gives_the_same_bits(name: str, folders: Folders) -> None:
    if not ISAS:
        pytest.skip("the cpu backend is not built: run pip install -e . first")
    traces = []
    for isa in ISAS:
        with Engine("cpu", isa).load(folders[name]) as model:
            traces.append(trace_of(model, RECIPES[name]))
    for trace in traces[1:]:
        differing = [s for s in traces[0] if not same_bits(trace[s], traces[0][s])]
        assert differing == []


@pytest.mark.parametrize("name", ["gqa-9-3-bf16", "all-biases-f16"])
def test_every_number_of_threads_gives_the_same_bits(name: str, folders: Folders) -> None:
    traces = []
    for threads in (1, 2, 3):
        with ENGINES[-1].load(folders[name], threads=threads) as model:
            traces.append(trace_of(model, RECIPES[name]))
    for trace in traces[1:]:
        assert [s for s in traces[0] if not same_bits(trace[s], traces[0][s])] == []


@engines
@pytest.mark.parametrize("name", ["gqa-6-3", "mqa-3-1", "attention-bias-bf16"])
def test_a_float16_cache_rounds_keys_and_values_and_nothing_else(
    name: str, engine: Engine, folders: Folders
) -> None:
    with engine.load(folders[name], kv_dtype="float16") as model:
        trace = model.trace(golden(name).ids)
    assert_within(rows_of(name, trace, cache=np.float16))
    held_to_definition(RECIPES[name], trace, cache=np.float16)
    attended = next(r for r in rows_of(name, trace) if r.stage.endswith("attn_output"))
    assert attended.beyond == "ours", "the option changed nothing"


@engines
@pytest.mark.parametrize("name", ["gqa-9-3-bf16", "rope-llama3-new", "head-dim-16-of-8"])
def test_a_prompt_of_many_blocks(name: str, engine: Engine, folders: Folders) -> None:
    """150 tokens: ten cache blocks, the last one partly filled."""
    recipe = RECIPES[name]
    ids = recipe.ids(150)
    with engine.load(folders[name]) as model:
        whole, chunked = model.trace(ids), model.trace(ids, chunk=37)
    held_to_definition(recipe, whole)
    if engine.backend == "cpu":
        assert all(same_bits(whole[stage], chunked[stage]) for stage in whole)
