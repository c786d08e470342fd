"""RoPE settings in every spelling: accepted alike, contradictions and unknown settings refused."""

import pytest
from checkpoints import tiny_llama_config

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models import RopeConfig, family_for

LLAMA3 = {
    "factor": 8,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}


def parse(**changes):
    config = tiny_llama_config(**{"rope_theta": None, **changes})
    return family_for(config).parse(config, "config.json")


def rope(**changes) -> RopeConfig:
    return parse(**changes).rope


def refused(kind=ConfigError, **changes) -> str:
    with pytest.raises(kind) as caught:
        parse(**changes)
    assert str(caught.value).startswith("config.json: ")
    return str(caught.value)


@pytest.mark.parametrize(
    "changes, expected",
    [
        # S01
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}, ("default", 1e6)),
        ({"rope_parameters": {"rope_theta": 1000000}}, ("default", 1e6)),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5}, ("default", 5e5)),
        ({"rope_parameters": {"rope_theta": 5e5}, "rope_theta": 500000}, ("default", 5e5)),
        # S02
        ({"rope_scaling": {"type": "linear", "factor": 2}}, ("linear", 1e4, 2.0)),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.5}}, ("linear", 1e4, 2.5)),
        ({"rope_scaling": None, "rope_theta": 7}, ("default", 7.0)),
        ({"rope_scaling": {}, "rope_theta": 7}, ("default", 7.0)),
        ({"rope_parameters": {}, "rope_theta": 7}, ("default", 7.0)),
        ({"rope_scaling": {"type": None, "factor": None}}, ("default", 1e4)),
        ({"rope_scaling": {"type": "default"}}, ("default", 1e4)),
        # both spellings of one thing, as transformers 5 writes a converted file
        (
            {"rope_parameters": {"type": "linear", "rope_type": "linear", "factor": 2.0}},
            ("linear", 1e4, 2.0),
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5e4},
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            ("linear", 5e4, 2.0),
        ),
        ({"rope_scaling": {"type": "llama3", **LLAMA3}}, ("llama3", 1e4, 8.0, 1.0, 4.0, 64)),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            ("llama3", 5e5, 8.0, 1.0, 4.0, 64),
        ),
        (
            {
                "rope_scaling": {"type": "llama3", **LLAMA3},
                "original_max_position_embeddings": 64,
            },
            ("llama3", 1e4, 8.0, 1.0, 4.0, 64),
        ),
    ],
)
def test_spellings(changes, expected):
    assert rope(**changes) == RopeConfig(*expected)


def test_numbers_become_floats_and_lengths_stay_integers():
    config = rope(rope_scaling={"type": "llama3", **LLAMA3}, rope_theta=500000)
    for name in ("theta", "factor", "low_freq_factor", "high_freq_factor"):
        assert type(getattr(config, name)) is float
    assert type(config.original_max_position_embeddings) is int


def test_sources_name_the_block():
    old = parse(rope_scaling={"type": "linear", "factor": 2}, rope_theta=9.0)
    assert old.sources["factor"] == "config.json (rope_scaling)"
    assert old.sources["rope_theta"] == "config.json"
    new = parse(rope_parameters={"rope_theta": 9.0})
    assert new.sources["rope_theta"] == "config.json (rope_parameters)"
    none = parse()
    assert none.sources["rope_theta"].startswith("default")
    assert none.sources["rope_type"].startswith("default")


@pytest.mark.parametrize("block", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("value", [False, True, 1, 0, "linear", [], [1]])
def test_a_block_is_an_object(block, value):
    message = refused(**{block: value})
    assert f"{block}: expected an object or null" in message and repr(value) in message


@pytest.mark.parametrize(
    "changes, parts",
    [
        (
            {"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4},
            ["rope_theta", "1000000.0", "10000.0", "rope_parameters"],
        ),
        (
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"type": "linear"}},
            ["rope_type", "'default'", "'linear'", "rope_parameters", "rope_scaling"],
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2},
                "rope_scaling": {"type": "linear", "factor": 4},
            },
            ["factor", "2.0", "4.0"],
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "llama3", "factor": 2}},
            ["rope_type 'llama3'", "type 'linear'"],
        ),
        (
            {
                "rope_scaling": {"type": "llama3", **LLAMA3},
                "original_max_position_embeddings": 65,
            },
            ["original_max_position_embeddings", "64", "65"],
        ),
    ],
)
def test_contradictions_are_refused(changes, parts):
    message = refused(**changes)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "block, parts",
    [
        ({"type": "linear"}, ["factor", "'linear'", "absent"]),
        ({"type": "linear", "factor": 0.5}, ["factor", "at least 1", "0.5"]),
        ({"type": "linear", "factor": True}, ["rope_scaling.factor", "True"]),
        ({"type": "linear", "factor": "2"}, ["rope_scaling.factor", "'2'"]),
        ({"type": "linear", "factor": float("nan")}, ["rope_scaling.factor", "nan"]),
        ({"factor": 2.0}, ["factor", "'default'", "2.0"]),
        ({"type": "default", "factor": 2.0}, ["factor", "'default'", "2.0"]),
        ({"type": "linear", "factor": 2, "low_freq_factor": 1}, ["low_freq_factor", "'linear'"]),
        ({"type": "llama3", **LLAMA3, "factor": None}, ["factor", "absent"]),
        ({"type": "llama3", **LLAMA3, "low_freq_factor": None}, ["low_freq_factor", "absent"]),
        ({"type": "llama3", **LLAMA3, "high_freq_factor": None}, ["high_freq_factor", "absent"]),
        (
            {"type": "llama3", **LLAMA3, "original_max_position_embeddings": None},
            ["original_max_position_embeddings", "absent"],
        ),
        (
            {"type": "llama3", **LLAMA3, "original_max_position_embeddings": 64.0},
            ["original_max_position_embeddings", "64.0"],
        ),
        ({"type": "llama3", **LLAMA3, "high_freq_factor": 1}, ["high_freq_factor", "above"]),
        ({"type": "llama3", **LLAMA3, "low_freq_factor": 0}, ["low_freq_factor", "above 0"]),
    ],
)
def test_wrong_values_in_a_block(block, parts):
    message = refused(rope_scaling=block)
    assert all(part in message for part in ["rope_scaling", *parts]), message


@pytest.mark.parametrize(
    "kind", ["su", "mrope", "proportional", "axial", "ntk", "Linear", 3, ["linear"]]
)
@pytest.mark.parametrize("block, key", [("rope_scaling", "type"), ("rope_parameters", "rope_type")])
def test_other_types_are_refused_by_name(block, key, kind):
    message = refused(UnsupportedModelError, **{block: {key: kind, "factor": 4, "beta_fast": 32}})
    assert f"{block}.rope_type" in message and repr(kind) in message and "llama3" in message


@pytest.mark.parametrize(
    "block, path",
    [
        ({"type": "linear", "factor": 2, "finetuned": True}, "rope_scaling.finetuned"),
        ({"mrope_section": [16, 24, 24]}, "rope_scaling.mrope_section"),
        ({"full_attention": {"rope_type": "default"}}, "rope_scaling.full_attention"),
    ],
)
def test_unknown_settings_of_a_block_are_refused(block, path):
    assert path in refused(UnsupportedModelError, rope_scaling=block)


@pytest.mark.parametrize(
    "changes, part",
    [
        # S12: three names, and an older one
        ({"rotary_dim": 4}, "rotary_dim: expected head_dim (8), found 4"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1, found 0.5"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            "rope_parameters.partial_rotary_factor: expected 1, found 0.5",
        ),
        ({"rotary_pct": 0.25}, "rotary_pct: expected 1, found 0.25"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": "half"}, "partial_rotary_factor"),
        ({"rotary_dim": 8.0}, "rotary_dim"),
    ],
)
def test_partial_rotation_is_refused(changes, part):
    assert part in refused(**changes)


def test_the_whole_rotation_may_be_spelled_out():
    changes = {"rotary_dim": 8, "partial_rotary_factor": 1, "rotary_pct": 1.0}
    block = {"rope_parameters": {"rope_theta": 3.0, "partial_rotary_factor": 1.0}}
    assert rope(**changes, **block) == RopeConfig("default", 3.0)
