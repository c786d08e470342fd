"""Qwen3: queries and keys are normed head by head."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import biases, heads, layers, rope_parameters, windows_from

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As Qwen3Config and Qwen3Model read it."""
    return Geometry(
        **heads({"head_dim": 128, **config}),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=layers(config, windows_from(config)),
        ropes={"model.rotary_emb": rope_parameters(config)},
        qk_norm="head",
    )


QWEN3 = Family(
    {
        **BASE,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "head_dim": 10,
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    geometry,
    biases,
)

RECIPES = (
    # head_dim is not hidden_size / heads; one kv head.
    Recipe(
        "qwen3-one-kv-head",
        QWEN3,
        {"num_attention_heads": 3, "num_key_value_heads": 1, "rope_theta": 1e6}
        | {"use_sliding_window": False, "max_window_layers": 2},
        seed=5000,
    ),
    Recipe(
        "qwen3-window-bf16",
        QWEN3,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        | {"hidden_size": 16, "head_dim": 6, "attention_bias": True},
        "BF16",
        seed=5100,
        tokens=34,
    ),
    # Queries and keys near the square root of eps: where eps stands decides their size.
    Recipe(
        "qwen3-small-heads-f16",
        QWEN3,
        {"tie_word_embeddings": True, "head_dim": 18, "num_attention_heads": 2}
        | {"rms_norm_eps": None},
        "F16",
        {"q_proj.weight": -9, "k_proj.weight": -10},
        seed=5200,
    ),
)
