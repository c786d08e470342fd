"""Qwen2: biases that no key gives, and windows from some layer on."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import heads, layers, rope_parameters, windows_from

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As Qwen2Config and Qwen2Model read it."""
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=layers(config, windows_from(config)),
        ropes={"model.rotary_emb": rope_parameters(config)},
    )


QWEN2 = Family(
    {
        **BASE,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    geometry,
    biases=lambda config: ("q_proj", "k_proj", "v_proj"),
)

RECIPES = (
    # S07: a window is given and not used.
    Recipe(
        "qwen2-window-unused",
        QWEN2,
        {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1}
        | {"rope_theta": 1e6},
        seed=4000,
        tokens=20,
    ),
    # The first layer sees all, the second eight positions.
    Recipe(
        "qwen2-window-from-layer-1-bf16",
        QWEN2,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        | {"hidden_size": 16, "num_key_value_heads": 4},
        "BF16",
        seed=4100,
        tokens=34,
    ),
    Recipe(
        "qwen2-layer-types-f16",
        QWEN2,
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
        | {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True}
        | {"num_attention_heads": 3, "num_key_value_heads": 1},
        "F16",
        seed=4200,
        tokens=20,
    ),
    # More layers than max_window_layers has room for: none has a window.
    Recipe(
        "qwen2-window-from-layer-28",
        QWEN2,
        {"use_sliding_window": True, "sliding_window": 5, "hidden_size": 16},
        seed=4300,
        tokens=18,
    ),
)
