"""Phi-3: fused projections, longrope, and rotation of a part of each head."""

from __future__ import annotations

from dataclasses import replace

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.reading import heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As Phi3Config and Phi3Model read it: the types "su" and "yarn" are longrope's old names."""
    rope = rope_parameters({"original_max_position_embeddings": 4096, **config})
    if rope["rope_type"] in ("su", "yarn"):
        rope |= {"rope_type": "longrope"}
        rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    window = config.get("sliding_window")
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-5),
        layers=layers(config, [window] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope},
    )


PHI3 = Family(
    {
        **BASE,
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rope_scaling": None,
    },
    geometry,
    fused={
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    },
)

_LONG = {"original_max_position_embeddings": 20, "max_position_embeddings": 80}

# A prompt of 18 tokens grows past the original length of 20: when the token comes that makes it
# longer, all are computed anew with the long factors.
_DECODE = Recipe(
    "phi3-longrope-decode-f16",
    PHI3,
    {**_LONG, "tie_word_embeddings": True}
    | {"rope_scaling": {"type": "longrope"}
       | {"short_factor": [1.0, 1.02, 1.3], "long_factor": [1.25, 3.5, 12.0]}},
    "F16",
    seed=7100,
    tokens=26,
    decode_from=18,
    before="phi3-longrope-before-f16",
)
# At the border: a prompt of 20 tokens is short, one more makes all of them long.
_BORDER = Recipe(
    "phi3-longrope-border-bf16",
    PHI3,
    {**_LONG, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16}
    | {"rope_scaling": {"rope_type": "longrope", "attention_factor": 1.5}
       | {"short_factor": [1.0] * 4, "long_factor": [1.5, 2, 4.0, 16.0]}},
    "BF16",
    seed=7300,
    tokens=22,
    decode_from=20,
    before="phi3-longrope-border-before-bf16",
)

RECIPES = (
    # Phi-4-mini's partial rotation: six of eight columns.
    Recipe(
        "phi3-partial",
        PHI3,
        {"hidden_size": 32, "partial_rotary_factor": 0.75, "num_key_value_heads": 2},
        seed=7000,
    ),
    _DECODE,
    replace(_DECODE, name=_DECODE.before, tokens=20, before=""),
    # The first conversions' name of the type; a prompt that is long at once.
    Recipe(
        "phi3-longrope-long",
        PHI3,
        {**_LONG, "hidden_size": 16, "partial_rotary_factor": 0.5, "num_attention_heads": 2}
        | {"rope_scaling": {"type": "su", "original_max_position_embeddings": 20}
           | {"short_factor": [1.0, 1.5], "long_factor": [2.0, 9.0]}},
        seed=7200,
        tokens=26,
    ),
    _BORDER,
    replace(_BORDER, name=_BORDER.before, tokens=20, decode_from=None, before=""),
    Recipe(
        "phi3-window-bf16",
        PHI3,
        {"sliding_window": 8, "hidden_size": 16, "num_key_value_heads": 1},
        "BF16",
        seed=7400,
        tokens=34,
    ),
)
