"""Granite's and OLMo 2's config.json: multipliers, and where the norms are."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError
from kestrel.models import FAMILIES, DecoderConfig, family_for

MULTIPLIERS = ["embedding_multiplier", "residual_multiplier", "logits_scaling"]


def parse(config: dict) -> DecoderConfig:
    return family_for(config).parse(config)


def test_multipliers_are_one_unless_given():
    config = parse(tiny("granite"))
    assert [getattr(config, name) for name in MULTIPLIERS] == [1.0, 1.0, 1.0]
    assert config.attention_scale == 1.0  # no root of head_dim
    assert config.sources["attention_scale"] == "attention_multiplier, default (of transformers)"


def test_multipliers_of_a_release():
    config = parse(PUBLIC["granite-3.0-2b"])
    assert [getattr(config, name) for name in MULTIPLIERS] == [12.0, 0.22, 8.0]
    assert (config.attention_scale, config.head_dim) == (0.015625, 64)
    assert config.sources["attention_scale"] == "attention_multiplier, config.json"
    # Not a float32 value: 0.1 becomes the nearest one, as torch does with a Python factor.
    assert parse(tiny("granite", attention_multiplier=0.1)).attention_scale == 0.10000000149011612


@pytest.mark.parametrize("value", [0, -0.5, "1", True, float("inf"), 1e-60])
@pytest.mark.parametrize("key", [*MULTIPLIERS, "attention_multiplier"])
def test_multipliers_that_cannot_be_right(key, value):
    with pytest.raises(ConfigError, match=key):
        parse(tiny("granite", **{key: value}))


def test_olmo2_has_norms_after_its_blocks_alone():
    names = FAMILIES["olmo2"].layer_names
    assert "input_norm" not in names and "mlp_norm" not in names
    config = parse(PUBLIC["olmo-2-1b"])
    assert (config.qk_norm, config.norm_offset, config.rms_norm_eps) == ("projection", 0.0, 1e-6)
    assert config.sources["rms_norm_eps"] == "config.json"
