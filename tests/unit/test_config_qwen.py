"""Qwen2's and Qwen3's config.json: windows by three keys, biases, norms of queries and keys."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError
from kestrel.models import DecoderConfig, family_for

F, S = "full_attention", "sliding_attention"
both = pytest.mark.parametrize("family", ["qwen2", "qwen3"])


def parse(config: dict) -> DecoderConfig:
    return family_for(config).parse(config)


@both
@pytest.mark.parametrize(
    "changes, windows",
    [
        ({}, [None] * 4),
        ({"sliding_window": 8, "use_sliding_window": False}, [None] * 4),  # S07
        ({"sliding_window": 8}, [None] * 4),
        # From the layer max_window_layers on; 28 when it is absent.
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
            [None, None, None, 8],
        ),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [8] * 4),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 9}, [None] * 4),
        ({"use_sliding_window": True, "sliding_window": 8}, [None] * 4),
        ({"use_sliding_window": True, "max_window_layers": 2}, [None, None, 4096, 4096]),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 4),
        # layer_types decides, whatever max_window_layers says.
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
            | {"layer_types": [S, F, S, F]},
            [8, None, 8, None],
        ),
        ({"sliding_window": 8, "layer_types": [F] * 4}, [None] * 4),
    ],
)
def test_windows(family, changes, windows):
    config = parse(tiny(family, num_hidden_layers=4, **changes))
    assert [kind.window for kind in config.layers] == windows


@both
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 8},
        {"sliding_window": 8, "use_sliding_window": False},
        {"sliding_window": None, "use_sliding_window": True},
    ],
)
def test_a_windowed_layer_without_a_window_is_refused(family, changes):
    with pytest.raises(ConfigError, match="sliding_window: layer 1 is sliding_attention") as caught:
        parse(tiny(family, layer_types=[F, S], **changes))
    assert caught.value.key == "sliding_window"


@both
def test_a_window_that_is_switched_off_is_shown(family):
    config = parse(tiny(family, sliding_window=8, use_sliding_window=False))
    shown = {name: (value, source) for name, value, source in config.described()}
    assert shown["sliding_window"] == (None, "implied by use_sliding_window (false)")
    assert "layer_types" not in shown


def test_biases():
    # S10: of q, k and v in every Qwen2; of all four in a Qwen3 that says so.
    config = parse(tiny("qwen2"))
    assert (config.attention_bias, config.attention_output_bias, config.mlp_bias) == (
        True, False, False,
    )  # fmt: skip
    for said in (False, True):
        config = parse(tiny("qwen3", attention_bias=said))
        assert (config.attention_bias, config.attention_output_bias) == (said, said)


def test_releases():
    small, distilled, third = (
        parse(PUBLIC[name])
        for name in ("qwen2.5-0.5b", "deepseek-r1-distill-qwen-1.5b", "qwen3-0.6b")
    )
    assert (small.head_dim, small.tie_word_embeddings, small.qk_norm) == (64, True, None)
    assert distilled.rope.theta == 10000.0 and not distilled.tie_word_embeddings
    assert (third.head_dim, third.qk_norm, third.hidden_size) == (128, "head", 1024)
    assert {small.attention_window, distilled.attention_window, third.attention_window} == {None}
