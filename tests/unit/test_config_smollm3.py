"""SmolLM3's config.json: which layers have RoPE, and which a window."""

import pytest
from unit.family_configs import PUBLIC, tiny

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models import DecoderConfig, family_for

F, S = "full_attention", "sliding_attention"


def parse(**changes: object) -> DecoderConfig:
    config = tiny("smollm3", num_hidden_layers=4, **changes)
    return family_for(config).parse(config)


@pytest.mark.parametrize(
    "changes, rotated",
    [
        ({}, [1, 1, 1, 0]),
        ({"no_rope_layer_interval": 2}, [1, 0, 1, 0]),
        ({"no_rope_layer_interval": 1}, [0, 0, 0, 0]),
        ({"no_rope_layers": None, "no_rope_layer_interval": 3}, [1, 1, 0, 1]),
        # The list decides; 1 means RoPE, the name notwithstanding. It may be longer.
        ({"no_rope_layers": [0, 1, 1, 1], "no_rope_layer_interval": 2}, [0, 1, 1, 1]),
        ({"no_rope_layers": [0, 0, 1, 1, 0, 0]}, [0, 0, 1, 1]),
    ],
)
def test_layers_with_rope(changes, rotated):
    config = parse(**changes)
    assert [int(kind.rope is not None) for kind in config.layers] == rotated
    assert all(kind.rope in (None, config.rope) for kind in config.layers)
    shown = {name: value for name, value, _ in config.described()}
    assert shown["no_rope_layers"] == rotated


@pytest.mark.parametrize("value", [[], [1, 0], [1, 1, 1, 2], [1, 1, 1, True], [1.0] * 4, "1110", 1])
def test_lists_that_cannot_be_right(value):
    with pytest.raises(ConfigError, match="no_rope_layers: expected 4 entries") as caught:
        parse(no_rope_layers=value)
    assert caught.value.key == "no_rope_layers"


@pytest.mark.parametrize(
    "changes, windows",
    [
        ({"sliding_window": 8}, [None] * 4),  # S07
        ({"use_sliding_window": True}, [None] * 4),
        ({"use_sliding_window": True, "sliding_window": 8}, [None, None, None, 8]),
        (
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": [F, S, S, F]},
            [None, 8, 8, None],
        ),
    ],
)
def test_layers_without_rope_have_the_window(changes, windows):
    config = parse(**changes)
    assert [kind.window for kind in config.layers] == windows
    assert [kind.rope is not None for kind in config.layers] == [True, True, True, False]


def test_windows_that_contradict():
    with pytest.raises(ConfigError, match="sliding_window: layer 0 is sliding_attention"):
        parse(sliding_window=8, layer_types=[S] * 4)
    # A key of Qwen2 that the class does not know: nothing, as long as there is no window.
    parse(max_window_layers=2)
    with pytest.raises(UnsupportedModelError, match="max_window_layers"):
        parse(max_window_layers=2, use_sliding_window=True, sliding_window=8)


def test_release():
    config = family_for(PUBLIC["smollm3-3b"]).parse(PUBLIC["smollm3-3b"])
    assert [i for i, kind in enumerate(config.layers) if kind.rope is None] == list(range(3, 36, 4))
    assert config.attention_window is None and config.tie_word_embeddings
    assert (config.head_dim, config.rope.theta) == (128, 5e6)
