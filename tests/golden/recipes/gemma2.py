"""Gemma 2: norms before and after each block, capped scores and logits, alternating windows."""

from __future__ import annotations

from golden.recipes.base import BASE, NULL, Family, Recipe
from golden.recipes.gemma import gemma_fields
from golden.recipes.reading import biases, layers, rope_parameters, windows_of

from kestrel.stages import Geometry

__all__ = ["RECIPES", "sandwich"]

#: Norms around each block, Gemma 2's and Gemma 3's.
sandwich = {
    "attention_output_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_output_norm": "post_feedforward_layernorm",
}


def geometry(config: dict[str, object]) -> Geometry:
    """As Gemma2Config and Gemma2Model read it: every second layer sees all, from the second on."""
    kinds = config.get("layer_types") or [
        "full_attention" if index % 2 else "sliding_attention"
        for index in range(config["num_hidden_layers"])
    ]
    return Geometry(
        **gemma_fields(config),
        **sandwich,
        layers=layers(config, windows_of({"sliding_window": 4096, **config}, kinds)),
        ropes={"model.rotary_emb": rope_parameters(config)},
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        attn_logit_softcapping=config.get("attn_logit_softcapping", 50.0),
        final_logit_softcapping=config.get("final_logit_softcapping", 30.0),
    )


GEMMA2 = Family(
    {
        **BASE,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 10,
        "hidden_size": 16,
    },
    geometry,
    biases,
    tied=True,
)

RECIPES = (
    # Caps that bite: scores and logits of several times their size.
    Recipe(
        "gemma2-caps",
        GEMMA2,
        {"sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 1.5}
        | {"final_logit_softcapping": 2.5},
        "F32",
        {"q_proj.weight": 2},
        seed=9000,
        tokens=26,
    ),
    # Nothing said: caps of 50 and 30, scores by 1 / 16, a window of 4096.
    Recipe(
        "gemma2-unsaid-bf16",
        GEMMA2,
        {"hidden_size": 20, "num_key_value_heads": 1, "num_hidden_layers": 2},
        "BF16",
        seed=9100,
    ),
    # Caps written as null, and windows in the other order.
    Recipe(
        "gemma2-no-caps-f16",
        GEMMA2,
        {"attn_logit_softcapping": NULL, "final_logit_softcapping": NULL, "sliding_window": 17}
        | {"layer_types": ["full_attention", "sliding_attention"], "query_pre_attn_scalar": 10},
        "F16",
        seed=9200,
        tokens=19,
    ),
    # Three layers: window, all, window; a third block of the cache.
    Recipe(
        "gemma2-alternating",
        GEMMA2,
        {"sliding_window": 5, "num_hidden_layers": 3, "num_attention_heads": 2, "head_dim": 6}
        | {"num_key_value_heads": 1, "intermediate_size": 10, "query_pre_attn_scalar": 6}
        | {"hidden_size": 12},
        seed=9300,
        tokens=34,
    ),
)
