"""Gemma 3: two RoPE bases, normed queries and keys, five windows to one full layer."""

from __future__ import annotations

from golden.recipes.base import BASE, Family, Recipe
from golden.recipes.gemma import gemma_fields
from golden.recipes.gemma2 import sandwich
from golden.recipes.reading import biases, rope_parameters, windows_of

from kestrel.stages import Geometry, LayerGeometry

__all__ = ["RECIPES"]


def geometry(config: dict[str, object]) -> Geometry:
    """As Gemma3TextConfig and Gemma3TextModel read it.

    ``rope_scaling`` and ``rope_theta`` are those of full layers, ``rope_local_base_freq`` those of
    windows; in the new spelling each kind has a block of its own.
    """
    pattern = config.get("sliding_window_pattern", 6)
    kinds = config.get("layer_types") or [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(config["num_hidden_layers"])
    ]
    blocks = config.get("rope_parameters") or {"full_attention": config.get("rope_scaling") or {}}
    bases = {
        "full_attention": config.get("rope_theta", 1e6),
        "sliding_attention": config.get("rope_local_base_freq", 1e4),
    }
    tables = {
        kind: rope_parameters(config, {"rope_theta": bases[kind], **blocks.get(kind, {})})
        for kind in sorted(set(kinds))
    }
    alone = len(tables) == 1
    names = {kind: "model.rotary_emb" + ("" if alone else f".{kind}") for kind in tables}
    windows = windows_of({"sliding_window": 4096, **config}, kinds)
    return Geometry(
        **gemma_fields(config),
        **sandwich,
        layers=tuple(LayerGeometry(w, names[kind]) for w, kind in zip(windows, kinds)),
        ropes={names[kind]: tables[kind] for kind in tables},
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        qk_norm="head",
        final_logit_softcapping=config.get("final_logit_softcapping"),
    )


GEMMA3 = Family(
    {
        **BASE,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 6,
        "hidden_size": 16,
        "rope_theta": None,
        "query_pre_attn_scalar": 6,
    },
    geometry,
    biases,
    tied=True,
)

RECIPES = (
    # The released configs' spelling: linear scaling of full layers alone.
    Recipe(
        "gemma3-two-bases",
        GEMMA3,
        {"sliding_window": 5, "sliding_window_pattern": 2, "num_hidden_layers": 3}
        | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_attention_heads": 2}
        | {"hidden_size": 12, "intermediate_size": 10}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "num_key_value_heads": 1},
        seed=10000,
        tokens=34,
    ),
    # transformers 5's spelling.
    Recipe(
        "gemma3-layer-types-bf16",
        GEMMA3,
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}
        | {"rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        }},
        "BF16",
        seed=10100,
        tokens=20,
    ),
    # Two of six layers: windows alone, so one table; bases are the class's own.
    Recipe(
        "gemma3-one-kind-f16",
        GEMMA3,
        {"sliding_window": 8, "final_logit_softcapping": 3.0, "num_key_value_heads": 4},
        "F16",
        seed=10200,
        tokens=20,
    ),
)
