"""Mistral's config.json: the window of every layer, and what its class fixes."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.models import DecoderConfig, family_for


def parse(config: dict) -> DecoderConfig:
    return family_for(config).parse(config)


@pytest.mark.parametrize(
    "value, window, source",
    [
        (8, 8, "config.json"),  # S06
        (None, None, "config.json"),  # v0.2 and later
        (..., 4096, "default (of transformers)"),
    ],
)
def test_every_layer_has_the_window(value, window, source):
    config = parse(tiny("mistral", sliding_window=value))
    assert [kind.window for kind in config.layers] == [window, window]
    assert config.attention_window == window
    shown = {name: (value, source) for name, value, source in config.described()}
    assert shown["sliding_window"] == (window, source)


def test_releases():
    first, third, nemo = (
        parse(PUBLIC[f"mistral-{name}"]) for name in ("7b-v0.1", "7b-v0.3", "nemo-12b")
    )
    assert [first.attention_window, third.attention_window] == [4096, None]
    assert (first.head_dim, first.num_kv_heads) == (128, 8)
    assert (nemo.head_dim, nemo.num_heads * nemo.head_dim, nemo.hidden_size) == (128, 4096, 5120)
    assert not (first.attention_bias or first.attention_output_bias or first.mlp_bias)
