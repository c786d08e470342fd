"""Reports S01, S02, S04, S06, S07, S10, S36, S37, S41 to S43: the right behaviour on every backend.

What went wrong in each report is made to happen in tests/golden/numpy_decoder.py, where
test_bounds.py shows that the bounds would catch it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kestrel
from golden.engines import ENGINES, Engine, Folders, held_to_definition, same_bits
from golden.recipes import FAR_POSITIONS, RECIPES, Recipe, data_file, far_tables
from kestrel import bounds
from kestrel.dump import Dump
from kestrel.models.rope import frequencies
from kestrel.program.recorder import Recorder
from kestrel.program.trace import TraceSpec
from kestrel.program.values import Dim

engines = pytest.mark.parametrize("engine", ENGINES, ids=str)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("reports"))


def _with(name: str, **config: object) -> Recipe:
    return replace(RECIPES[name], config={**RECIPES[name].config, **config})


def _assert_far_rows(name: str, positions: list[int], tables: dict[str, np.ndarray]) -> None:
    """Tables [P, D/2] at some of FAR_POSITIONS against those that transformers made."""
    ((_, parameters),) = RECIPES[name].geometry().ropes.items()
    stages = Dump.read(data_file(name)).stages
    rows = [FAR_POSITIONS.index(position) for position in positions]
    hows = (bounds.KESTREL, bounds.REFERENCE)
    exact = [far_tables(parameters, how, tuple(positions)) for how in hows]
    for part, mine, theirs in zip(("cos", "sin"), *exact):
        reference = stages[f"far/model.rotary_emb.{part}"][rows]
        ours = tables[f"model.rotary_emb.{part}"]
        assert (np.abs(ours - mine[0]) <= mine[1]).all()
        assert (np.abs(ours.astype(np.float64) - reference) <= mine[1] + theirs[1]).all()


@engines
def test_s01_theta_in_the_new_block_far_into_the_context(engine: Engine, folders: Folders) -> None:
    """Positions 0, 100, 1000: the tables are transformers', the rest follows from them."""
    recipe = _with("rope-theta-new", max_position_embeddings=2048)
    positions = [0, 100, 1000]
    with engine.load(folders[recipe]) as model:
        assert model.config.rope.theta == 1e6
        trace = model.trace(recipe.ids(1001))
    held_to_definition(recipe, trace)
    tables = {name: trace[name][positions] for name in trace if "rotary_emb" in name}
    _assert_far_rows("rope-theta-new", positions, tables)


def _with_scaling(value: object, folder: Path) -> Path:
    """gqa-6-3 with a ``rope_scaling`` in its config.json, None as null."""
    RECIPES["gqa-6-3"].write(folder)
    config = {**RECIPES["gqa-6-3"].config_json(), "rope_scaling": value}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("value", [None, {}])
def test_s02_no_scaling_spelled_in_two_ways(value: object, tmp_path: Path) -> None:
    recipe = RECIPES["gqa-6-3"]
    with Engine("reference").load(_with_scaling(value, tmp_path)) as model:
        assert model.config.rope.type == "default"
        held_to_definition(recipe, model.trace(recipe.ids()))


@pytest.mark.parametrize("value", [False, 1])
def test_s02_what_is_no_scaling_is_refused(value: object, tmp_path: Path) -> None:
    folder = _with_scaling(value, tmp_path)
    with pytest.raises(kestrel.errors.ConfigError, match=f"rope_scaling: .*found {value}"):
        Engine("reference").load(folder)


@engines
def test_s04_head_dim_is_read_and_not_derived(engine: Engine, folders: Folders) -> None:
    """Hidden 32, 4 heads of 16: q_proj is [64, 32], o_proj [32, 64], RoPE turns 8 pairs."""
    recipe = RECIPES["head-dim-16-of-8"]
    with engine.load(folders[recipe]) as model:
        trace = model.trace(recipe.ids())
    attention = "model.layers.1.self_attn"
    widths = {
        name: trace[name].shape[1]
        for name in (
            f"{attention}.q_proj",
            f"{attention}.k_proj",
            f"{attention}.attn_output",
            f"{attention}.o_proj",
            "model.rotary_emb.cos",
        )
    }
    assert list(widths.values()) == [64, 32, 64, 32, 8]


@engines
def test_s06_a_window_belongs_to_a_layer(engine: Engine, folders: Folders) -> None:
    """The first of two layers sees 8 positions, the second all, at each of 40 positions."""
    recipe = _with(
        "qwen2-layer-types-f16",
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=8,
    )
    with engine.load(folders[recipe]) as model:
        assert [kind.window for kind in model.config.layers] == [8, None]
        held_to_definition(recipe, model.trace(recipe.ids(40)))


@pytest.mark.parametrize("name", ["qwen2-window-unused", "qwen3-one-kv-head", "smollm3-list-bf16"])
@engines
def test_s07_a_window_that_is_switched_off(engine: Engine, name: str, folders: Folders) -> None:
    """40 tokens, a window of 8 that is not used."""
    recipe = _with(name, use_sliding_window=False, sliding_window=8)
    with engine.load(folders[recipe]) as model:
        assert [kind.window for kind in model.config.layers] == [None, None]
        held_to_definition(recipe, model.trace(recipe.ids(40)))


def test_s10_a_bias_that_the_family_lacks_is_named(tmp_path: Path) -> None:
    """Qwen2 has biases of q, k and v that no key announces, and none of o."""
    folder = RECIPES["qwen2-window-unused"].write(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.o_proj.bias"] = np.zeros(24, np.float32)
    save_file(tensors, folder / "model.safetensors")
    name = "model.layers.1.self_attn.o_proj.bias"
    with pytest.raises(kestrel.errors.UnexpectedTensorError, match=name):
        Engine("reference").load(folder)


@engines
def test_s36_chunks_of_any_size(engine: Engine, folders: Folders) -> None:
    recipe = RECIPES["gqa-9-3-bf16"]
    ids = recipe.ids(40)
    with engine.load(folders[recipe]) as model:
        logits = [model.session().prefill(ids, chunk=c) for c in (1, 7, 8, 39, 40, 41)]
        held_to_definition(recipe, model.trace(ids, chunk=7))
    assert all(same_bits(other, logits[0]) for other in logits)


@engines
def test_s37_a_short_prompt_beside_a_long_one(engine: Engine, folders: Folders) -> None:
    recipe = RECIPES["gqa-9-3-bf16"]
    prompts = [recipe.ids(30)[:3], recipe.ids(30)]
    with engine.load(folders[recipe]) as model:
        together = model.trace(prompts)
        alone = [model.trace(ids) for ids in prompts]
    for batch, single in zip(together, alone):
        held_to_definition(recipe, batch)
        assert all(same_bits(batch[stage], single[stage]) for stage in single)


@engines
@pytest.mark.parametrize("name", ["rope-linear-new-bf16", "rope-llama3-old", "gqa-9-3-bf16"])
def test_s41_angles_at_far_positions(name: str, engine: Engine, folders: Folders) -> None:
    """Positions 1857, 32767 and 131071 through the operation itself, against transformers."""
    positions = [1857, 32767, 131071]
    with engine.load(folders[name]) as model:
        weights, config = model.weights, model.config
        maxima = {Dim.TOKENS: 3, Dim.SEQUENCES: 1, Dim.LOGIT_ROWS: 1}
        r = Recorder(maxima, 1, TraceSpec(("model.rotary_emb.*",)))
        r.rotary_embedding(
            frequencies(config.rope, config.head_dim, config.context_limit), "model.rotary_emb"
        )
        x = r.embed(r.inputs.token_ids, weights.embed_tokens, 1.0, "model.embed_tokens")
        x = r.gather_rows(x, r.inputs.logit_rows, "model.logit_rows")
        run = model.backend.compile(r.outputs(r.linear(x, weights.lm_head, "lm_head")))
        run.inputs.token_ids[:3], run.inputs.logit_rows[:1] = 0, 0
        run.inputs.positions[:3] = positions
        run.inputs.slots[:3], run.inputs.block_table[:] = (0, 1, 2), 0
        run.inputs.seq_start[:2], run.inputs.context_len[:1] = (0, 3), 3
        run.submit(3, 1, 1)
        run.wait()
        _assert_far_rows(name, positions, {stage: run.taps[stage] for stage in run.taps})


@engines
def test_s42_halves_and_not_pairs(engine: Engine, folders: Folders) -> None:
    """head_dim 8, position 5: i and i + 4 turn together; pairs (2i, 2i + 1) would differ."""
    recipe = RECIPES["gqa-6-3"]
    with engine.load(folders[recipe]) as model:
        trace = model.trace(recipe.ids())
    attention = "model.layers.0.self_attn"
    head = trace[f"{attention}.q_proj"][5, :8].astype(np.float64)
    cos, sin = (trace[f"model.rotary_emb.{part}"][5].astype(np.float64) for part in ("cos", "sin"))
    halves = np.concatenate((head[:4] * cos - head[4:] * sin, head[4:] * cos + head[:4] * sin))
    turned = trace[f"{attention}.q_rope"][5, :8]
    # Two roundings of terms of at most |head| each.
    assert np.abs(turned - halves).max() <= 4 * 2.0**-24 * np.abs(head).max() * 2
    pairs = np.stack(
        (head[0::2] * cos - head[1::2] * sin, head[1::2] * cos + head[0::2] * sin), axis=1
    )
    assert np.abs(turned - pairs.ravel()).max() > 0.01
    reference = Dump.read(data_file(recipe.name)).stages[f"{attention}.q_rope"][5, :8]
    assert np.abs(reference - pairs.ravel()).max() > 0.01


@engines
def test_s43_query_head_h_reads_kv_head_h_over_group(engine: Engine, folders: Folders) -> None:
    """Position 0 sees itself alone: its attention output is the value row of its kv head."""
    recipe = RECIPES["gqa-6-3"]
    with engine.load(folders[recipe]) as model:
        trace = model.trace(recipe.ids())
    attention = "model.layers.0.self_attn"
    values = trace[f"{attention}.v_proj"][0].reshape(3, 8)
    assert same_bits(trace[f"{attention}.attn_output"][0].reshape(6, 8), values[[0, 0, 1, 1, 2, 2]])
