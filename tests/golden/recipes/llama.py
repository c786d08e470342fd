"""Llama: the first issue's recipes, and those of the RoPE types."""

from __future__ import annotations

from golden.recipes.base import BASE as SMALL
from golden.recipes.base import Family, Recipe
from golden.recipes.reading import biases, heads, layers, rope_parameters

from kestrel.stages import Geometry

__all__ = ["LLAMA", "RECIPES"]

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
#: Integers where floats are usual, and the old name of the type.
YARN = {
    "type": "yarn",
    "factor": 4,
    "original_max_position_embeddings": 256,
    "beta_fast": 16,
    "beta_slow": 2,
}
YARN_MSCALE = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.7,
    "mscale_all_dim": 1.3,
    "truncate": False,
}
DYNAMIC = {
    "head_dim": 8,
    "max_position_embeddings": 20,
    "rope_scaling": {"type": "dynamic", "factor": 3.0},
}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 20,
    "short_factor": [1.0, 1.1, 1.25],
    "long_factor": [1.5, 3.0, 7.5],
}

BASE: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 67,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def geometry(config: dict[str, object]) -> Geometry:
    """As LlamaConfig and LlamaModel read it."""
    return Geometry(
        **heads(config),
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        layers=layers(config, [None] * config["num_hidden_layers"]),
        ropes={"model.rotary_emb": rope_parameters(config)},
    )


LLAMA = Family(BASE, geometry, biases)


def _llama(name: str, config: dict[str, object], *rest: object, **options: object) -> Recipe:
    return Recipe(name, LLAMA, config, *rest, **options)


RECIPES = (
    _llama("gqa-6-3", {}, seed=100),
    _llama("gqa-9-3-bf16", {"num_attention_heads": 9, "head_dim": 6}, "BF16", seed=200),
    # Defaults of the family: head_dim, kv heads and eps are not in the file (S11, S14).
    _llama(
        "mha-4-defaults",
        {"num_attention_heads": 4, "head_dim": None, "num_key_value_heads": None}
        | {"hidden_size": 40, "rms_norm_eps": None, "tie_word_embeddings": True},
        seed=300,
    ),
    _llama(
        "gqa-8-4-f16",
        {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 32}
        | {"head_dim": 10, "tie_word_embeddings": True, "intermediate_size": 37}
        | {"vocab_size": 50},
        "F16",
        seed=400,
    ),
    # One kv head; head_dim 20 spans two vectors of 16 lanes with a tail.
    _llama(
        "mqa-3-1",
        {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20},
        seed=500,
    ),
    # S04: q_proj is [64, 32] and o_proj [32, 64].
    _llama(
        "head-dim-16-of-8",
        {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"head_dim": 16, "tie_word_embeddings": True, "intermediate_size": 44},
        seed=600,
    ),
    _llama("attention-bias-bf16", {"attention_bias": True}, "BF16", seed=700),
    _llama("all-biases-f16", {"attention_bias": True, "mlp_bias": True}, "F16", seed=800),
    # S02: the key was called type before it was called rope_type.
    _llama(
        "rope-linear-old",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        seed=900,
    ),
    _llama(
        "rope-linear-new-bf16",
        {"rope_theta": None}
        | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
        "BF16",
        seed=1000,
    ),
    # Wavelengths from 6.3 to 3.5e5 around 16 and 64: each branch of the llama3 rule is taken.
    _llama(
        "rope-llama3-old",
        {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "head_dim": 12}
        | {"intermediate_size": 33, "vocab_size": 49},
        seed=1100,
    ),
    _llama(
        "rope-llama3-new",
        {"rope_theta": None, "num_key_value_heads": 2, "tie_word_embeddings": True}
        | {"rope_parameters": {**LLAMA3, "rope_theta": 10000.0}},
        seed=1200,
    ),
    # S01: theta stands in the new block only.
    _llama(
        "rope-theta-new",
        {"rope_theta": None}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        seed=1300,
    ),
    # S44 and deep softmaxes: embeddings near 1000, scores far apart.
    _llama(
        "large-norms-bf16",
        {"tie_word_embeddings": True},
        "BF16",
        {"embed_tokens.weight": 10, "q_proj.weight": 2, "k_proj.weight": 2}
        | {"down_proj.weight": 6, "up_proj.weight": 4},
        seed=1400,
    ),
    # Mean square near eps: where eps stands decides the first digit.
    _llama(
        "small-norms",
        {},
        scale={"embed_tokens.weight": -8, "o_proj.weight": -8},
        seed=1500,
    ),
    # S03: an integer factor. Of 4 pairs with head_dim 8 and theta 100 the first stays, the last is
    # divided, two lie between; cos and sin are stretched by 0.1 ln 4 + 1.
    _llama(
        "rope-yarn-integers",
        {**SMALL, "head_dim": 8, "rope_theta": 100, "max_position_embeddings": 1024}
        | {"rope_scaling": YARN},
        seed=1600,
    ),
    # Fields left out: the original length is max_position_embeddings, beta_fast 32, beta_slow 1.
    _llama(
        "rope-yarn-missing-bf16",
        {**SMALL, "head_dim": 12, "rope_theta": 50.0}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 2.5}},
        "BF16",
        seed=1700,
    ),
    _llama(
        "rope-yarn-mscale-f16",
        {**SMALL, "head_dim": 10, "rope_theta": None}
        | {"rope_parameters": {**YARN_MSCALE, "rope_theta": 200.0}},
        "F16",
        seed=1800,
    ),
    # NTK by length: over 20 positions every token that comes has frequencies of its own.
    _llama(
        "rope-dynamic-decode",
        {**SMALL, **DYNAMIC},
        seed=1900,
        tokens=27,
        decode_from=18,
    ),
    _llama("rope-dynamic-long-bf16", {**SMALL, **DYNAMIC}, "BF16", seed=2000, tokens=27),
    # Phi's type in Llama's class.
    _llama(
        "rope-longrope-decode",
        {**SMALL, "head_dim": 6, "max_position_embeddings": 64, "rope_scaling": LONGROPE},
        seed=2100,
        tokens=24,
        decode_from=19,
    ),
)
