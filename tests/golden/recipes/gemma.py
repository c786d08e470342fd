"""Gemma: scaled embeddings, norms by 1 + w, GELU."""

from __future__ import annotations

import numpy as np
from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import biases, heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["RECIPES", "gemma_fields"]


def gemma_fields(config: dict[str, object]) -> dict[str, object]:
    """Fields of Geometry that all Gemmas share.

    The square root of hidden_size is a float32 tensor of the embedding, also in a float64 run.
    """
    return {
        **heads({"head_dim": 256, **config}),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "hidden_act": "gelu_pytorch_tanh",
        "norm_offset": 1.0,
        "embedding_multiplier": float(np.float32(config["hidden_size"] ** 0.5)),
    }


def geometry(config: dict[str, object]) -> Geometry:
    """As GemmaConfig and GemmaModel read it: hidden_act "gelu" means the tanh form."""
    return Geometry(
        **gemma_fields(config),
        layers=layers(config, [None] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope_parameters(config)},
    )


GEMMA = Family(
    {
        **BASE,
        "architectures": ["GemmaForCausalLM"],
        "model_type": "gemma",
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 10,
    },
    geometry,
    biases,
    tied=True,
)

RECIPES = (
    # The official releases' spelling.
    Recipe("gemma-gelu", GEMMA, {"hidden_act": "gelu", "rms_norm_eps": None}, seed=8000),
    # 2B: one kv head, and heads that together are wider than the model.
    Recipe(
        "gemma-one-kv-head-bf16",
        GEMMA,
        {"num_key_value_heads": 1, "head_dim": 18, "num_attention_heads": 2, "hidden_size": 22},
        "BF16",
        seed=8100,
    ),
    # Gates up to 30, where GELU is 0 or its input.
    Recipe(
        "gemma-wide-gates-f16",
        GEMMA,
        {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 4},
        "F16",
        {"gate_proj.weight": 3, "down_proj.weight": -2},
        seed=8200,
    ),
)
