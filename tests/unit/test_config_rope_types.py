"""yarn, longrope and dynamic in config.json: what is left out, what is wrong, what is shown."""

import math

import pytest
from unit.family_configs import CLASSES, tiny

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models import DecoderConfig, family_for

YARN = {"rope_type": "yarn", "factor": 4}
FACTORS = {"short_factor": [1, 1, 1.5, 2, 3], "long_factor": [1, 2, 4, 8, 16.5]}
LONGROPE = {"type": "longrope", **FACTORS}


def parse(block: dict, key: str = "rope_scaling", family: str = "llama", **changes):
    config = tiny(family, **{key: block, "max_position_embeddings": 256, **changes})
    return family_for(config).parse(config, "config.json")


def shown(config: DecoderConfig) -> dict[str, tuple[object, str]]:
    return {name: (value, source) for name, value, source in config.described()}


def refusal(block: dict, error: type = ConfigError, **changes) -> str:
    with pytest.raises(error) as caught:
        parse(block, **changes)
    return str(caught.value)


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_what_yarn_leaves_out_is_filled_and_shown(key):
    # S03: a factor without a point, and no original length
    values = shown(parse(YARN, key))
    assert values["rope_type"] == ("yarn", f"config.json ({key})")
    assert values["factor"] == (4.0, f"config.json ({key})")
    by = "implied by max_position_embeddings"
    assert values["original_max_position_embeddings"] == (256, by)
    assert values["beta_fast"] == (32.0, "default (of transformers)")
    assert values["beta_slow"] == (1.0, "default (of transformers)")
    assert values["truncate"] == (True, "default (of transformers)")
    factor, source = values["attention_factor"]
    assert factor == pytest.approx(1.1386294361119891, rel=1e-15)  # 0.1 ln 4 + 1
    assert source == "implied by factor (4)"


def test_what_yarn_says_is_taken():
    said = {
        "beta_fast": 24, "beta_slow": 3.5, "truncate": False, "attention_factor": 0.5,
        "original_max_position_embeddings": 64, "mscale": 1, "mscale_all_dim": 0.5,
    }  # fmt: skip
    values = shown(parse({**YARN, **said}))
    for name, value in said.items():
        assert values[name] == (value, "config.json (rope_scaling)")


@pytest.mark.parametrize(
    "scales, expected",
    [
        # DeepSeek: (0.1 m ln 4 + 1) / (0.1 n ln 4 + 1)
        ({"mscale": 7, "mscale_all_dim": 3}, (0.7 * math.log(4) + 1) / (0.3 * math.log(4) + 1)),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        # One alone, or zero, is none.
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
        ({"mscale": 0, "mscale_all_dim": 1.3}, 0.1 * math.log(4) + 1),
    ],
)
def test_attention_factor_of_yarn(scales, expected):
    found, source = shown(parse({**YARN, **scales}))["attention_factor"]
    assert found == pytest.approx(expected, rel=1e-14)
    assert ("mscale" in source) == (0 not in scales.values() and len(scales) == 2)


def test_a_yarn_factor_of_null_is_the_ratio_of_the_lengths():
    block = {"type": "yarn", "factor": None, "original_max_position_embeddings": 64}
    values = shown(parse(block))
    by = "implied by max_position_embeddings / original_max_position_embeddings"
    assert values["factor"] == (4.0, by)
    assert values["attention_factor"][0] == pytest.approx(1.1386294361119891, rel=1e-15)


@pytest.mark.parametrize("family", CLASSES)
def test_a_scaling_reaches_the_layers_of_every_family(family):
    # Phi-3's class has an original length of 4096, and a context is not shorter than that.
    block = {"rope_type": "longrope", **FACTORS}
    config = parse(block, family=family, max_position_embeddings=4096, num_hidden_layers=6)
    ropes = {kind.rope.type: kind.rope for kind in config.layers if kind.rope is not None}
    # Gemma 3's windowed layers have a RoPE of their own.
    windowed = {"default"} if family == "gemma3_text" else set()
    assert ropes.keys() == {"longrope", *windowed}
    assert ropes["longrope"].short_factor == (1.0, 1.0, 1.5, 2.0, 3.0)
    assert ropes["longrope"].long_factor == (1.0, 2.0, 4.0, 8.0, 16.5)


def test_longrope_in_other_families():
    config = parse(LONGROPE, original_max_position_embeddings=16, family="qwen2")
    values = shown(config)
    assert config.rope_length_range == (16, 17) and not config.rope_restarts
    assert values["short_factor"] == ((1.0, 1.0, 1.5, 2.0, 3.0), "config.json (rope_scaling)")
    assert values["original_max_position_embeddings"] == (16, "config.json")
    # sqrt(1 + ln 16 / ln 16)
    assert values["attention_factor"] == (
        math.sqrt(2), "implied by max_position_embeddings / original_max_position_embeddings (16)"
    )  # fmt: skip
    assert "factor" not in values
    given = {**LONGROPE, "factor": 4.0, "original_max_position_embeddings": 16}
    assert shown(parse(given))["attention_factor"] == (math.sqrt(1.5), "implied by factor (4)")
    # Without an original length nothing is stretched.
    rope = parse(LONGROPE).rope
    assert (rope.original_max_position_embeddings, rope.attention_factor) == (256, 1.0)
    assert parse(LONGROPE).rope_length_range is None


@pytest.mark.parametrize(
    "original, limit",
    [
        (256, 1024),  # Qwen2.5: max_position_embeddings says the context before yarn
        (64, 256),  # DeepSeek: the one after it
        (16, 256),
        (None, 1024),
    ],
)
def test_yarn_stretches_the_context_as_far_as_it_reaches(original, limit):
    config = parse({**YARN, "original_max_position_embeddings": original})
    assert (config.max_position_embeddings, config.context_limit) == (256, limit)
    assert config.rope_length_range is None
    # Positions travel as int32.
    assert parse({**YARN, "factor": 1e30}).context_limit == 2**31 - 1


def test_dynamic_stretches_the_context():
    config = parse({"type": "dynamic", "factor": 3})
    assert (config.max_position_embeddings, config.context_limit) == (256, 768)
    assert config.rope_length_range == (256, 768)
    values = shown(config)
    assert values["rope_type"][0] == "dynamic" and values["factor"][0] == 3.0
    assert parse({"type": "dynamic", "factor": 1}).rope_length_range is None


@pytest.mark.parametrize(
    "block, parts",
    [
        ({"type": "yarn"}, ["factor", "'yarn'", "absent"]),
        ({**YARN, "factor": 0.5}, ["factor", "at least 1", "0.5"]),
        ({**YARN, "beta_fast": 1, "beta_slow": 2}, ["beta_fast", "at least 2", "1"]),
        ({**YARN, "beta_fast": 0}, ["rope_scaling.beta_fast", "above 0"]),
        ({**YARN, "attention_factor": "1"}, ["rope_scaling.attention_factor", "'1'"]),
        ({**YARN, "mscale": -1}, ["rope_scaling.mscale", "-1"]),
        ({**YARN, "truncate": 1}, ["rope_scaling.truncate", "true or false", "1"]),
        ({**YARN, "rope_theta": 1.0}, ["rope_theta", "above 1"]),
        ({**YARN, "original_max_position_embeddings": 64.0}, ["64.0"]),
        ({**YARN, "short_factor": [1] * 5}, ["short_factor", "expected none", "'yarn'"]),
        ({**YARN, "rope_type": "linear", "mscale": 1}, ["mscale", "expected none", "'linear'"]),
        ({"type": "dynamic"}, ["factor", "'dynamic'", "absent"]),
        (
            {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 64},
            ["original_max_position_embeddings", "expected none", "'dynamic'"],
        ),
        ({"type": "dynamic", "factor": 1e7}, ["factor", "64 MB"]),
        ({"type": "longrope"}, ["short_factor", "'longrope'", "absent"]),
        ({**LONGROPE, "long_factor": [1] * 4}, ["long_factor: expected 5 numbers", "found 4"]),
        ({**LONGROPE, "long_factor": []}, ["long_factor: expected 5 numbers", "found 0"]),
        ({**LONGROPE, "long_factor": 2.0}, ["rope_scaling.long_factor", "a list", "2.0"]),
        ({**LONGROPE, "short_factor": [1, 1, 0, 1, 1]}, ["rope_scaling.short_factor[2]", "0"]),
        ({**LONGROPE, "short_factor": [1, True, 1, 1, 1]}, ["short_factor[1]", "True"]),
        ({**LONGROPE, "factor": 0.5}, ["factor", "at least 1"]),
        ({**LONGROPE, "original_max_position_embeddings": 1}, ["original_max", "at least 2", "1"]),
    ],
)
def test_wrong_values(block, parts):
    message = refusal(block)
    assert all(part in message for part in ["config.json: rope_scaling", *parts]), message


def test_heads_too_narrow_for_dynamic():
    message = refusal({"type": "dynamic", "factor": 2}, head_dim=2)
    assert "head_dim: expected at least 4" in message


@pytest.mark.parametrize("family", [name for name in CLASSES if name != "phi3"])
@pytest.mark.parametrize("name", ["partial_rotary_factor", "rotary_pct", "rotary_dim"])
def test_partial_rotation_is_refused_where_the_class_does_not_know_it(family, name):
    # S12
    value = 8 if name == "rotary_dim" else 0.8
    config = tiny(family, **{name: value})
    with pytest.raises(UnsupportedModelError, match=name):
        family_for(config).parse(config)


def test_kinds_of_layers_have_types_of_their_own():
    blocks = {
        "full_attention": {**YARN, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
    }
    config = parse(blocks, "rope_parameters", "gemma3_text", num_hidden_layers=6)
    ropes = {kind.attention: kind.rope.type for kind in config.layers}
    assert ropes == {"full_attention": "yarn", "sliding_attention": "dynamic"}
    values = shown(config)
    assert values["beta_fast"] == (32.0, "default (of transformers)")
    assert values["sliding_attention.factor"] == (2.0, "config.json (rope_parameters)")
    # full_attention reaches 4 * 256 tokens, sliding_attention 2 * 256: the least counts.
    assert config.context_limit == 512
    # transformers does not find it there.
    blocks["full_attention"]["truncate"] = False
    with pytest.raises(UnsupportedModelError, match="full_attention: truncate: expected true"):
        parse(blocks, "rope_parameters", "gemma3_text", num_hidden_layers=6)


@pytest.mark.reference
@pytest.mark.parametrize(
    "block",
    [
        YARN,
        {**YARN, "factor": 3.7, "mscale": 0.7, "mscale_all_dim": 1.3},
        {**YARN, "original_max_position_embeddings": 64, "mscale": 2.0},
        {"type": "yarn", "factor": None, "original_max_position_embeddings": 64},
        {**LONGROPE, "original_max_position_embeddings": 16},
        {**LONGROPE, "original_max_position_embeddings": 16, "factor": 3.0},
        LONGROPE,
        {**LONGROPE, "attention_factor": 1.2},
        {"type": "dynamic", "factor": 3},
    ],
)
def test_factor_of_cos_and_sin_is_that_of_transformers(block):
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = parse(block)
    source = tiny("llama", rope_scaling=dict(block), max_position_embeddings=256)
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig.from_dict(source)).attention_scaling
    assert (config.rope.attention_factor or 1.0) == theirs
