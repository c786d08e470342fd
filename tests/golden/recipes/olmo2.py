"""OLMo 2: norms after the blocks, and of queries and keys over all heads at once."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import biases, heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As Olmo2Config and Olmo2Model read it."""
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-5),
        layers=layers(config, [None] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope_parameters(config)},
        qk_norm="projection",
        attention_norm=None,
        attention_output_norm="post_attention_layernorm",
        mlp_norm=None,
        mlp_output_norm="post_feedforward_layernorm",
    )


OLMO2 = Family(
    {
        **BASE,
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
    },
    geometry,
    biases,
)

RECIPES = (
    # 7B: as many kv heads as heads, by default.
    Recipe(
        "olmo2-mha",
        OLMO2,
        {"num_key_value_heads": None, "rope_theta": 500000.0, "rms_norm_eps": None},
        seed=11000,
    ),
    # 32B has fewer kv heads: the two norms differ in width.
    Recipe("olmo2-gqa-bf16", OLMO2, {"attention_bias": True}, "BF16", seed=11100),
    Recipe(
        "olmo2-one-kv-head-f16",
        OLMO2,
        {"num_key_value_heads": 1, "num_attention_heads": 3, "tie_word_embeddings": True}
        | {"hidden_size": 18},
        "F16",
        {"o_proj.weight": -9, "embed_tokens.weight": 4},
        seed=11200,
        tokens=33,
    ),
)
