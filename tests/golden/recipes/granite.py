"""Granite: Llama with four multipliers."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import biases, heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As GraniteConfig and GraniteModel read it: every multiplier is 1 when nothing is said."""
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=layers(config, [None] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope_parameters(config)},
        attention_scale=config.get("attention_multiplier", 1.0),
        embedding_multiplier=config.get("embedding_multiplier", 1.0),
        residual_multiplier=config.get("residual_multiplier", 1.0),
        logits_scaling=config.get("logits_scaling", 1.0),
    )


GRANITE = Family(
    {
        **BASE,
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    geometry,
    biases,
)

RECIPES = (
    # Granite 3's own values.
    Recipe(
        "granite-multipliers",
        GRANITE,
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}
        | {"attention_multiplier": 0.0078125, "tie_word_embeddings": True},
        seed=12000,
    ),
    # None of these is a float32 value.
    Recipe(
        "granite-biases-bf16",
        GRANITE,
        {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 3.7}
        | {"residual_multiplier": 0.1, "logits_scaling": 1.3, "attention_multiplier": 0.3},
        "BF16",
        seed=12100,
    ),
    # Scores are not divided by the root of head_dim when nothing is said.
    Recipe(
        "granite-unsaid-f16",
        GRANITE,
        {"num_attention_heads": 3, "num_key_value_heads": 1, "rope_theta": 1e6},
        "F16",
        seed=12200,
        tokens=33,
    ),
)
