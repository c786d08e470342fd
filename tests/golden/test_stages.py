"""Every stage of every recipe, at all positions, on every backend and instruction set.

The golden files are what transformers computed. Prefill whole, token by token, in chunks and in a
ragged batch, and step by step untraced: all of these are the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from kestrel.diff import compare, compare_trace
from kestrel.dump import Dump
from kestrel.program.trace import Trace
from kestrel.stages import stages_of

#: Recipes whose cache is made of float16 too, and whose prompts are made long.
FLOAT16_CACHE = ("gqa-6-3", "mqa-3-1", "attention-bias-bf16", "mistral-window-5-f16", "gemma2-caps")
MANY_BLOCKS = (
    "gqa-9-3-bf16", "rope-llama3-new", "head-dim-16-of-8", "mistral-window-17-18-tokens",
    "qwen3-window-bf16", "gemma2-alternating",
)  # fmt: skip
engines = pytest.mark.parametrize("engine", ENGINES, ids=str)
recipes = pytest.mark.parametrize("name", RECIPES)


@dataclass
class Runs:
    """Traces of golden prompts that came in one piece, each made once."""

    folders: Folders
    traces: dict[tuple[str, Engine], Trace] = field(default_factory=dict)

    def whole(self, name: str, engine: Engine) -> Trace:
        if (name, engine) not in self.traces:
            with engine.load(self.folders[name]) as model:
                self.traces[name, engine] = trace_of(model, RECIPES[name])
        return self.traces[name, engine]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("recipes"))


@pytest.fixture(scope="module")
def runs(folders: Folders) -> Runs:
    return Runs(folders)


@lru_cache(maxsize=None)
def golden(name: str) -> Dump:
    return Dump.read(data_file(name))


def rows_of(name: str, trace: Trace, cache: type | None = None):
    ours, theirs, recipe = replace(KESTREL, cache=cache), golden(name).stages, RECIPES[name]
    stages = list(stages_of(recipe.geometry()))
    rows = compare(
        stages, recipe.weights(), trace.ids, trace, theirs, ours, decode_from=recipe.rotated_from
    )
    assert [row.stage for row in rows] == [stage.name for stage in stages]
    return rows


@engines
@recipes
def test_every_stage_at_all_positions(
    name: str, engine: Engine, folders: Folders, runs: Runs
) -> None:
    """Each within its bound; token by token, and decoded without a trace, the same bits."""
    recipe, ids = RECIPES[name], golden(name).ids
    # Frequencies that follow the length of the sequence follow that of its first call.
    start = recipe.decode_from or (len(ids) if recipe.follows_length else 9)
    whole = runs.whole(name, engine)
    assert whole.ids == ids
    assert_within(rows_of(name, whole))
    with engine.load(folders[name]) as model:
        single = trace_of(model, recipe, 1)
        session = model.session()
        logits = [session.prefill(ids[:start]), *(session.decode(token) for token in ids[start:])]
    assert all(same_bits(single[stage], whole[stage]) for stage in whole)
    last = "logits" if "logits" in whole else "lm_head"
    rows = list(whole[last][(recipe.rotated_from or start) - 1 :])
    if recipe.before:
        rows = [*runs.whole(recipe.before, engine)[last][start - 1 :], *rows]
    assert len(rows) == len(logits) and all(map(same_bits, logits, rows))


@engines
@recipes
def test_chunks_and_batches_change_no_bit(
    name: str, engine: Engine, folders: Folders, runs: Runs
) -> None:
    recipe, ids = RECIPES[name], golden(name).ids
    whole, start = runs.whole(name, engine), ids[: recipe.decode_from]
    first = runs.whole(recipe.before or name, engine)
    with engine.load(folders[name]) as model:
        traces = [trace_of(model, recipe, chunk) for chunk in (7, 64)]
        batched = model.trace([ids[::-1][:3], start, ids[5:], ids[:1]])[1]
    for trace in traces:
        assert all(same_bits(trace[stage], whole[stage]) for stage in whole)
    assert all(same_bits(batched[stage], first[stage][: len(start)]) for stage in first)


@pytest.mark.parametrize("name", [n for n, each in RECIPES.items() if each.decode_from is None])
def test_diff_reads_the_geometry_from_the_loaded_model(
    name: str, folders: Folders, runs: Runs
) -> None:
    """`kestrel diff` knows no recipe: config and weights say what the stages are."""
    trace = runs.whole(name, ENGINES[0])
    with ENGINES[0].load(folders[name]) as model:
        rows = compare_trace(trace, golden(name), model.config, model.weights)
    assert_within(rows)
    stages = stages_of(RECIPES[name].geometry())
    assert [row.stage for row in rows] == [stage.name for stage in stages]


@recipes
def test_every_instruction_set_gives_the_same_bits(name: str, runs: Runs) -> None:
    if not ISAS:
        pytest.skip("the cpu backend is not built: run pip install -e . first")
    first, *others = (runs.whole(name, Engine("cpu", isa)) for isa in ISAS)
    for trace in others:
        assert [stage for stage in first if not same_bits(trace[stage], first[stage])] == []


@pytest.mark.parametrize("name", ["gqa-9-3-bf16", "all-biases-f16"])
def test_every_number_of_threads_gives_the_same_bits(name: str, folders: Folders) -> None:
    traces = []
    for threads in (1, 2, 3):
        with ENGINES[-1].load(folders[name], threads=threads) as model:
            traces.append(trace_of(model, RECIPES[name]))
    for trace in traces[1:]:
        assert [s for s in traces[0] if not same_bits(trace[s], traces[0][s])] == []


@engines
@pytest.mark.parametrize("name", FLOAT16_CACHE)
def test_a_float16_cache_rounds_keys_and_values_and_nothing_else(
    name: str, engine: Engine, folders: Folders
) -> None:
    with engine.load(folders[name], kv_dtype="float16") as model:
        trace = trace_of(model, RECIPES[name])
    assert_within(rows_of(name, trace, cache=np.float16))
    held_to_definition(RECIPES[name], trace, cache=np.float16)
    attended = next(r for r in rows_of(name, trace) if r.stage.endswith("attn_output"))
    assert attended.beyond == "ours", "the option changed nothing"


@engines
@pytest.mark.parametrize("name", MANY_BLOCKS)
def test_a_prompt_of_many_blocks(name: str, engine: Engine, folders: Folders) -> None:
    """150 tokens: ten cache blocks, the last one partly filled."""
    recipe = RECIPES[name]
    ids = recipe.ids(150)
    with engine.load(folders[name]) as model:
        whole, chunked = model.trace(ids), model.trace(ids, chunk=37)
    held_to_definition(recipe, whole)
    assert all(same_bits(whole[stage], chunked[stage]) for stage in whole)
