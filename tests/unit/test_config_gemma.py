"""Gemma's and Gemma 2's config.json: activations, multipliers, caps, alternating windows."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models import DecoderConfig, family_for

F, S = "full_attention", "sliding_attention"
both = pytest.mark.parametrize("family", ["gemma", "gemma2"])


def parse(family: str, **changes: object) -> DecoderConfig:
    config = tiny(family, num_hidden_layers=3, **changes)
    return family_for(config).parse(config)


@pytest.mark.parametrize(
    "family, changes, source",
    [
        ("gemma", {}, "hidden_act, default (of transformers)"),
        ("gemma", {"hidden_act": "gelu"}, "hidden_act, config.json"),  # the official spelling
        ("gemma", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act, config.json"),
        (
            "gemma",
            {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"},
            "hidden_act, config.json",
        ),
        ("gemma", {"hidden_activation": None}, "hidden_act, default (of transformers)"),
        ("gemma2", {}, "hidden_activation, default (of transformers)"),
        ("gemma2", {"hidden_activation": "gelu_pytorch_tanh"}, "hidden_activation, config.json"),
        ("gemma2", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_activation, default (of"),
    ],
)
def test_the_activation_is_the_tanh_form(family, changes, source):
    config = parse(family, **changes)
    assert config.hidden_act == "gelu_pytorch_tanh"
    assert config.sources["hidden_act"].startswith(source)


@pytest.mark.parametrize(
    "family, key, value",
    [
        ("gemma", "hidden_act", "silu"),
        ("gemma", "hidden_activation", "gelu"),  # which the reference would ignore
        ("gemma2", "hidden_activation", "gelu"),  # the exact form
        ("gemma2", "hidden_act", "gelu"),
    ],
)
def test_other_activations_are_refused(family, key, value):
    with pytest.raises(UnsupportedModelError, match=f"{key}: expected .*found '{value}'"):
        parse(family, **{key: value})


@both
@pytest.mark.parametrize(
    # float32 values: sqrt(2304) = 48, sqrt(2048) = 45.254833..., sqrt(3072) = 55.425625...
    "size, multiplier",
    [(2304, 48.0), (2048, 45.25483322143555), (3072, 55.42562484741211)],
)
def test_embeddings_are_multiplied_by_a_float32_root(family, size, multiplier):
    config = parse(family, hidden_size=size)
    assert config.embedding_multiplier == multiplier
    assert config.norm_offset == 1.0  # S44: 1 + w


def test_scores_are_scaled_by_what_the_class_names():
    assert parse("gemma", head_dim=16).attention_scale == 0.25
    assert parse("gemma2", head_dim=16).attention_scale == 0.0625  # 256 ** -0.5
    assert parse("gemma2", query_pre_attn_scalar=144).attention_scale == pytest.approx(1 / 12, 1e-7)


@pytest.mark.parametrize("value, attention, final", [(..., 50.0, 30.0), (None, None, None)])
def test_a_cap_of_null_is_none(value, attention, final):
    config = parse("gemma2", attn_logit_softcapping=value, final_logit_softcapping=value)
    assert config.attn_logit_softcapping == attention
    assert config.final_logit_softcapping == final


@pytest.mark.parametrize("value", [0, -1.0, "50", True])
def test_caps_that_cannot_be_right(value):
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        with pytest.raises(ConfigError, match=key):
            parse("gemma2", **{key: value})


@pytest.mark.parametrize(
    "changes, windows",
    [
        ({}, [4096, None, 4096]),
        ({"sliding_window": 8}, [8, None, 8]),  # S06
        ({"sliding_window": 8, "sliding_window_size": 8}, [8, None, 8]),
        ({"sliding_window": 8, "layer_types": [F, F, S]}, [None, None, 8]),
        ({"sliding_window": None, "layer_types": [F] * 3}, [None] * 3),
    ],
)
def test_every_second_layer_has_a_window(changes, windows):
    config = parse("gemma2", **changes)
    assert [kind.window for kind in config.layers] == windows


def test_windows_that_contradict():
    with pytest.raises(UnsupportedModelError, match="sliding_window_size: expected null or 8"):
        parse("gemma2", sliding_window=8, sliding_window_size=16)
    with pytest.raises(ConfigError, match="sliding_window: layer 0 is sliding_attention"):
        parse("gemma2", sliding_window=None)


def test_releases():
    for name, scale in (("gemma-2-2b", 1 / 16), ("gemma-2-9b", 1 / 16), ("gemma-2-27b", 1 / 12)):
        config = family_for(PUBLIC[name]).parse(PUBLIC[name])
        assert config.attention_scale == pytest.approx(scale, 1e-7)
        assert [kind.window for kind in config.layers[:4]] == [4096, None, 4096, None]
    config = family_for(PUBLIC["gemma-2b"]).parse(PUBLIC["gemma-2b"])
    assert config.tie_word_embeddings  # the default, which the released files leave to the class
    assert (config.num_kv_heads, config.head_dim, config.attention_scale) == (1, 256, 0.0625)
