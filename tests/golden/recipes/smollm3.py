"""SmolLM3: layers whose queries and keys are not turned."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import biases, heads, rope_parameters

from kestrel.stages import Geometry, LayerGeometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As SmolLM3Config and SmolLM3Model read it: windows are those of layers without RoPE."""
    count, interval = config["num_hidden_layers"], config.get("no_rope_layer_interval", 4)
    turned = config.get("no_rope_layers")
    if turned is None:
        turned = [int((index + 1) % interval != 0) for index in range(count)]
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=tuple(
            LayerGeometry(None, "model.rotary_emb") if each else LayerGeometry(window, None)
            for each in turned
        ),
        ropes={"model.rotary_emb": rope_parameters(config, theta=2e6)},
    )


SMOLLM3 = Family(
    {
        **BASE,
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "hidden_act": "silu",
    },
    geometry,
    biases,
    tied=True,
)

RECIPES = (
    Recipe(
        "smollm3-every-second",
        SMOLLM3,
        {"no_rope_layer_interval": 2, "num_hidden_layers": 3, "attention_bias": True}
        | {"mlp_bias": True, "hidden_size": 16, "tie_word_embeddings": False},
        seed=6000,
    ),
    # The list says which layers are turned, its name notwithstanding; theta is the family's own.
    Recipe(
        "smollm3-list-bf16",
        SMOLLM3,
        {"no_rope_layers": [0, 1], "rope_theta": None, "num_key_value_heads": 4},
        "BF16",
        seed=6100,
    ),
    Recipe(
        "smollm3-window-f16",
        SMOLLM3,
        {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 8}
        | {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1},
        "F16",
        seed=6200,
        tokens=36,
    ),
)
