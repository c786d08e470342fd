"""Phi-3's config.json: longrope by all its names, partial rotation, fused projections, its code."""

import math

import numpy as np
import pytest
from unit.binding import bind_all, write  # noqa: F401  write is a fixture
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError, ShapeError, UnsupportedModelError
from kestrel.models import DecoderConfig, family_for
from kestrel.models.rope import frequencies

#: Five pairs: heads of ten columns.
LONG = {"short_factor": [1, 1, 1.5, 2, 3], "long_factor": [1, 2, 4, 8, 16.5]}
LENGTHS = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}


def parse(**changes) -> DecoderConfig:
    config = tiny("phi3", **changes)
    return family_for(config).parse(config, "config.json")


def refusal(error: type = ConfigError, **changes) -> str:
    with pytest.raises(error) as caught:
        parse(**changes)
    return str(caught.value)


def shown(config: DecoderConfig) -> dict[str, tuple[object, str]]:
    return {name: (value, source) for name, value, source in config.described()}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "longrope", **LONG}},
        {"rope_scaling": {"type": "su", **LONG}},
        {"rope_scaling": {"type": "yarn", **LONG}},
        {"rope_scaling": {"rope_type": "longrope", "type": "su", **LONG}},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **LONG}},
        {"rope_scaling": {"type": "su", "original_max_position_embeddings": 16, **LONG}},
    ],
)
def test_names_of_longrope(spelling):
    rope = parse(**LENGTHS, **spelling).rope
    assert (rope.type, rope.theta, rope.factor) == ("longrope", 10000.0, None)
    assert rope.original_max_position_embeddings == 16
    assert rope.short_factor == (1.0, 1.0, 1.5, 2.0, 3.0)
    assert rope.long_factor == (1.0, 2.0, 4.0, 8.0, 16.5)
    # sqrt(1 + ln 4 / ln 16) = sqrt(1.5)
    assert rope.attention_factor == math.sqrt(1.5)


def test_what_longrope_took_is_shown():
    config = parse(**LENGTHS, rope_scaling={"type": "su", **LONG})
    values = shown(config)
    assert values["rope_type"] == ("longrope", "config.json (rope_scaling)")
    assert values["original_max_position_embeddings"] == (16, "config.json")
    assert values["attention_factor"][1] == (
        "implied by max_position_embeddings / original_max_position_embeddings (4)"
    )
    unsaid = parse(rope_scaling={"type": "longrope", **LONG}, max_position_embeddings=8192)
    assert shown(unsaid)["original_max_position_embeddings"] == (4096, "default (of transformers)")
    # Phi3Config reads the top level alone, and its default would overrule the block.
    block = {"type": "longrope", "original_max_position_embeddings": 16, **LONG}
    message = refusal(rope_scaling=block, max_position_embeddings=64)
    assert "original_max_position_embeddings: default (of transformers) says 4096" in message


def test_which_lengths_are_long():
    config = parse(**LENGTHS, rope_scaling={"type": "longrope", **LONG})
    assert (config.context_limit, config.rope_length_range) == (64, (16, 17))
    assert shown(config)["rope_restarts"] == (True, "implied by model_type")
    found = frequencies(config.rope, config.head_dim, config.context_limit)
    # Row 0 up to 16 tokens, row 1 from 17 on; the pair i has 10000 ** (-i / 5) over its factor.
    assert found.first_length == 16 and found.scale == math.sqrt(1.5)
    plain = [10000.0 ** (-i / 5) for i in range(5)]
    for row, factors in zip(found.table, LONG.values()):
        np.testing.assert_allclose(row, np.divide(plain, factors), rtol=2**-20)


def test_a_length_without_longrope_changes_nothing():
    config = parse(original_max_position_embeddings=16)  # as in Phi-4
    assert config.rope == parse().rope and config.rope_length_range is None
    assert "rope_restarts" not in shown(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"partial_rotary_factor": 0.8},
        {"rope_parameters": {"partial_rotary_factor": 0.8}},
        {"partial_rotary_factor": 0.8, "rotary_dim": 8, "rotary_pct": 0.8},
    ],
)
def test_a_part_of_each_head_is_rotated(changes):
    # S12
    config = parse(**changes)
    assert config.rope.rotated(config.head_dim) == 8
    value, source = shown(config)["rotary_dim"]
    assert value == 8 and source.startswith("implied by partial_rotary_factor (0.8, config.json")
    table = frequencies(config.rope, config.head_dim, 64).table
    np.testing.assert_allclose(table, [[1, 0.1, 0.01, 0.001]], rtol=2**-22)


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"rotary_dim": 8}, "rotary_dim: expected head_dim * partial_rotary_factor (10), found 8"),
        ({"rotary_pct": 0.8}, "rotary_pct: expected partial_rotary_factor (1, "),
        ({"partial_rotary_factor": 0.5}, "rotary_dim: expected an even number"),  # 5 columns
        ({"partial_rotary_factor": 1.2}, "rotary_dim: expected an even number"),
        (
            {"partial_rotary_factor": 0.8, "rope_parameters": {"partial_rotary_factor": 0.4}},
            "partial_rotary_factor: ",
        ),
        (
            {"partial_rotary_factor": 0.8, "rope_scaling": {"type": "su", **LONG}},
            "short_factor: expected 4 numbers, one for each rotated pair (8 columns",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling.rope_type: expected one"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "expected one of default, longrope"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor: rope_type 'longrope' needs it"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"full_attn_mod": 2}, "full_attn_mod"),
        ({"interpolate_factor": 2}, "interpolate_factor"),
    ],
)
def test_what_the_class_does_not_compute_is_refused(changes, part):
    assert part in refusal(**changes)


def test_releases():
    configs = {name: family_for(PUBLIC[name]).parse(PUBLIC[name]) for name in PUBLIC}
    mini4k, mini = configs["phi-3-mini-4k"], configs["phi-4-mini"]
    assert (mini4k.attention_window, mini4k.head_dim, mini4k.rope.type) == (2047, 96, "default")
    assert (mini.head_dim, mini.rope.rotary_dim, mini.tie_word_embeddings) == (128, 96, True)
    # sqrt(1 + ln 32 / ln 4096) = sqrt(1 + 5 / 12), as Phi-3's report of 128k has it
    assert mini.rope.attention_factor == pytest.approx(math.sqrt(17 / 12), rel=1e-15)
    assert mini.rope_length_range == (4096, 4097)
    assert configs["phi-4"].rope.theta == 250000.0 and configs["phi-4"].notes == ()


CODE = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "microsoft/Phi-3-mini-4k-instruct--modeling_phi3.Phi3ForCausalLM",
    "AutoTokenizer": "Xenova/gpt-4o",
}


def test_code_that_transformers_has_taken_over_passes_with_a_note():
    (note,) = parse(auto_map=CODE).notes
    assert "modeling_phi3.Phi3ForCausalLM" in note and "not run" in note
    assert "gpt-4o" not in note


@pytest.mark.parametrize(
    "auto_map",
    [
        {**CODE, "AutoModelForCausalLM": "modeling_phi3_small.Phi3SmallForCausalLM"},
        {**CODE, "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM2"},
        {**CODE, "AutoModelForCausalLM": ["modeling_phi3.Phi3ForCausalLM"]},
        "modeling_phi3.py",
        ["modeling_phi3"],
    ],
)
def test_other_code_is_refused(auto_map):
    assert "auto_map" in refusal(UnsupportedModelError, auto_map=auto_map)


def fused(layers: int = 2) -> dict[str, np.ndarray]:
    """Each row holds its index, and the layer's hundred."""
    shapes = {"model.embed_tokens.weight": (64, 32), "model.norm.weight": (32,)}
    shapes["lm_head.weight"] = (64, 32)
    for i in range(layers):
        shapes |= {
            f"model.layers.{i}.self_attn.qkv_proj.weight": (80, 32),
            f"model.layers.{i}.self_attn.o_proj.weight": (32, 40),
            f"model.layers.{i}.mlp.gate_up_proj.weight": (96, 32),
            f"model.layers.{i}.mlp.down_proj.weight": (32, 48),
            f"model.layers.{i}.input_layernorm.weight": (32,),
            f"model.layers.{i}.post_attention_layernorm.weight": (32,),
        }
    tensors = {}
    for name, shape in shapes.items():
        rows = np.arange(shape[0], dtype=np.float32) + 100 * ("layers.1." in name)
        tensors[name] = np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape).copy()
    return tensors


def test_rows_of_fused_projections(write):
    # q has 4 heads of 10 columns, k and v have 2; gate and up 48 rows each.
    weights, _ = bind_all(write(tiny("phi3"), fused()))
    expected = {
        "q_proj": (0, 40), "k_proj": (40, 60), "v_proj": (60, 80),
        "gate_proj": (0, 48), "up_proj": (48, 96),
    }  # fmt: skip
    for i, layer in enumerate(weights.layers):
        for name, (begin, end) in expected.items():
            view = getattr(layer, name).weight
            assert view.shape == (end - begin, 32)
            assert (view.to_numpy_f32()[:, 5] == np.arange(begin, end) + 100 * i).all()


def test_a_fused_tensor_of_another_shape_is_refused(write):
    tensors = fused()
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = np.ones((120, 32), np.float32)
    with pytest.raises(ShapeError, match="qkv_proj") as caught:
        bind_all(write(tiny("phi3"), tensors))
    assert "[80, 32]" in str(caught.value) and "[120, 32]" in str(caught.value)
