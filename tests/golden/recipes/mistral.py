"""Mistral: one window for all layers, or none."""

from __future__ import annotations

from golden.recipes.base import BASE, NULL, Family, Recipe
from golden.recipes.reading import heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As MistralConfig and MistralModel read it; the window is 4096 when nothing is said."""
    window = config.get("sliding_window", 4096)
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=layers(config, [window] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope_parameters(config)},
    )


MISTRAL = Family(
    {
        **BASE,
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    geometry,
)

#: A window of 17 positions and prompts below, at and above it.
_SEVENTEEN = {"sliding_window": 17, "hidden_size": 16, "num_hidden_layers": 2}

RECIPES = (
    # Mistral Nemo: a head_dim of its own; windows were given up by writing null.
    Recipe(
        "mistral-null-window-bf16",
        MISTRAL,
        {"sliding_window": NULL, "head_dim": 10, "rope_theta": 1e6},
        "BF16",
        seed=3000,
    ),
    Recipe("mistral-window-17-16-tokens", MISTRAL, _SEVENTEEN, seed=3100, tokens=16),
    Recipe("mistral-window-17-17-tokens", MISTRAL, _SEVENTEEN, seed=3100, tokens=17),
    Recipe("mistral-window-17-18-tokens", MISTRAL, _SEVENTEEN, seed=3100, tokens=18),
    # Whole blocks are left behind.
    Recipe(
        "mistral-window-5-f16",
        MISTRAL,
        {"sliding_window": 5, "hidden_size": 16, "num_key_value_heads": 1, "head_dim": 6},
        "F16",
        seed=3200,
        tokens=40,
    ),
    # A window of one block, and one that is never reached.
    Recipe(
        "mistral-window-16",
        MISTRAL,
        {"sliding_window": 16, "hidden_size": 20, "head_dim": 6, "num_attention_heads": 3}
        | {"num_key_value_heads": 3},
        seed=3300,
        tokens=34,
    ),
    Recipe("mistral-window-unsaid", MISTRAL, {"rms_norm_eps": None}, seed=3400),
)
