"""Gemma 3's config.json: kinds of layers by pattern or list, each with a RoPE of its own."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models import DecoderConfig, RopeConfig, family_for

F, S = "full_attention", "sliding_attention"


def parse(**changes: object) -> DecoderConfig:
    config = tiny("gemma3_text", num_hidden_layers=3, **changes)
    return family_for(config).parse(config)


def ropes(config: DecoderConfig) -> dict[str, RopeConfig]:
    return {kind.attention: kind.rope for kind in config.layers}


@pytest.mark.parametrize(
    "changes, windows",
    [
        ({}, [4096] * 3),
        ({"sliding_window": 8, "sliding_window_pattern": 2}, [8, None, 8]),  # S06
        ({"sliding_window_pattern": 1}, [None] * 3),
        ({"sliding_window": None, "sliding_window_pattern": 1}, [None] * 3),
        ({"sliding_window": 8, "layer_types": [F, S, S]}, [None, 8, 8]),
        # layer_types decides.
        ({"layer_types": [F, S, S], "sliding_window_pattern": 6}, [None, 4096, 4096]),
        ({"layer_types": [F, S, F], "_sliding_window_pattern": 2}, [None, 4096, None]),
        ({"sliding_window_pattern": 3, "_sliding_window_pattern": 3}, [4096, 4096, None]),
    ],
)
def test_windows(changes, windows):
    assert [kind.window for kind in parse(**changes).layers] == windows


def test_layers_that_contradict():
    with pytest.raises(ConfigError, match="sliding_window: layer 0 is sliding_attention"):
        parse(sliding_window=None)
    # Without layer_types transformers takes 6, whatever the underscored key says.
    with pytest.raises(UnsupportedModelError, match="_sliding_window_pattern: expected null or 6"):
        parse(_sliding_window_pattern=3)
    with pytest.raises(ConfigError, match="sliding_window_pattern"):
        parse(sliding_window_pattern=0)


BOTH = {"layer_types": [S, F, S]}


@pytest.mark.parametrize(
    "changes, full, local",
    [
        ({}, RopeConfig(theta=1e6), RopeConfig(theta=1e4)),
        (
            {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
            RopeConfig(theta=5e5),
            RopeConfig(theta=2e4),
        ),
        # rope_scaling was of full layers alone.
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            RopeConfig("linear", 1e6, 8.0),
            RopeConfig(theta=1e4),
        ),
        (
            {"rope_parameters": {
                F: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                S: {"rope_type": "default", "rope_theta": 2e4},
            }},
            RopeConfig("linear", 5e5, 8.0),
            RopeConfig(theta=2e4),
        ),
        (
            {"rope_parameters": {S: {"rope_theta": 2e4}, F: None}},
            RopeConfig(theta=1e6),
            RopeConfig(theta=2e4),
        ),
    ],
)  # fmt: skip
def test_each_kind_has_its_rope(changes, full, local):
    config = parse(**BOTH, **changes)
    assert ropes(config) == {F: full, S: local}
    shown = {name: (value, source) for name, value, source in config.described()}
    assert shown["rope_theta"][0] == full.theta
    assert shown["sliding_attention.rope_theta"][0] == local.theta
    assert all(source != "given" for _, source in shown.values())


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_parameters: exp"),
        ({"rope_parameters": False}, "rope_parameters: expected"),
        ({"rope_parameters": {F: {"spin": 2}}}, "full_attention: rope_parameters.spin: unknown"),
        ({"rope_parameters": {S: {"rope_theta": -1.0}}}, "sliding_attention: rope_parameters.rope"),
        (
            {"rope_parameters": {S: {"rope_theta": 1e4}}, "rope_local_base_freq": 2e4},
            "sliding_attention: rope_theta: .* says 10000.0, .* says 20000.0",
        ),
        ({"rope_scaling": {"rope_type": "wide"}}, "full_attention: rope_scaling.rope_type"),
        # The class would run it without the scaling.
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling.type: found 'linear'"),
        ({"rope_local_base_freq": 0}, "rope_local_base_freq: expected"),
    ],
)
def test_rope_that_cannot_be_right(changes, part):
    with pytest.raises(ConfigError, match=part):
        parse(**changes)


def test_capped_scores_are_refused():
    # The class keeps the number and its attention leaves it out.
    with pytest.raises(UnsupportedModelError, match="attn_logit_softcapping: expected null, found"):
        parse(attn_logit_softcapping=50.0)
    assert parse(attn_logit_softcapping=None).attn_logit_softcapping is None
    assert parse().final_logit_softcapping is None
    assert parse(final_logit_softcapping=30.0).final_logit_softcapping == 30.0


def test_releases():
    small, tiny_one, large = (
        family_for(PUBLIC[name]).parse(PUBLIC[name])
        for name in ("gemma-3-1b-it", "gemma-3-270m-it", "gemma-3-27b, its text part")
    )
    for config in (small, tiny_one, large):
        full = [i for i, kind in enumerate(config.layers) if kind.window is None]
        assert full == list(range(5, config.num_layers, 6))
        assert config.qk_norm == "head" and config.norm_offset == 1.0
    assert ropes(small) == {S: RopeConfig(theta=1e4), F: RopeConfig(theta=1e6)}
    assert ropes(large)[F] == RopeConfig("linear", 1e6, 8.0)
    assert large.attention_scale == pytest.approx(168**-0.5, 1e-7)
