"""Tiny random Llama checkpoints, each made bit for bit from a seed with NumPy alone.

A recipe is a config.json and a seed. Weights come from the raw 64-bit output of PCG64, which
NumPy keeps stable between versions (its distributions it does not: NEP 19), as multiples of
2**-24 times a power of two, so that no library function has a say in them. Tests without torch
rebuild the checkpoint that transformers saw when the golden file was made.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from checkpoints import encode, round_to, write_checkpoint

from kestrel.stages import Geometry

__all__ = ["FAR_POSITIONS", "RECIPES", "Recipe", "data_file"]

DATA = Path(__file__).parent / "data"
#: Tokens of a golden prompt: more than one cache block of 16, not a multiple of it.
TOKENS = 18
#: Positions of S01 and S41 at which the rotary tables are recorded too.
FAR_POSITIONS = (0, 100, 1000, 1857, 32767, 131071)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Recipe:
    """One checkpoint.

    Attributes:
        name: also the name of the golden file.
        config: what config.json says beyond `BASE`; a value of None removes the key.
        dtype: how the weights are stored: F32, F16 or BF16.
        scale: tensor name ending -> power of two by which those weights are multiplied.
        seed: of weights and prompt.
    """

    name: str
    config: dict[str, object]
    dtype: str = "F32"
    scale: dict[str, int] = field(default_factory=dict)
    seed: int = 0

    def config_json(self) -> dict[str, object]:
        """The whole config.json."""
        full = {**BASE, **self.config, "torch_dtype": _TORCH_NAMES[self.dtype]}
        return {key: value for key, value in full.items() if value is not None}

    def geometry(self) -> Geometry:
        """The config as the stage definitions want it, by the rules of the Llama family."""
        config = self.config_json()
        heads = config["num_attention_heads"]
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        theta = rope.get("rope_theta", config.get("rope_theta"))
        kind = rope.get("rope_type", rope.get("type", "default"))
        return Geometry(
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads", heads),
            head_dim=config.get("head_dim", config["hidden_size"] // heads),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_parameters={**rope, "rope_type": kind, "rope_theta": theta},
        )

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in the order in which they are drawn."""
        config, geometry = self.config_json(), self.geometry()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        q = geometry.num_attention_heads * geometry.head_dim
        kv = geometry.num_key_value_heads * geometry.head_dim
        yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
        for layer in range(geometry.num_hidden_layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (hidden,)
            linears = [("q_proj", q, hidden), ("k_proj", kv, hidden), ("v_proj", kv, hidden)]
            for name, out, into in [*linears, ("o_proj", hidden, q)]:
                yield f"{prefix}.self_attn.{name}.weight", (out, into)
                if config["attention_bias"]:
                    yield f"{prefix}.self_attn.{name}.bias", (out,)
            yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
            linears = [("gate_proj", inner, hidden), ("up_proj", inner, hidden)]
            for name, out, into in [*linears, ("down_proj", hidden, inner)]:
                yield f"{prefix}.mlp.{name}.weight", (out, into)
                if config["mlp_bias"]:
                    yield f"{prefix}.mlp.{name}.bias", (out,)
        yield "model.norm.weight", (hidden,)
        if not config["tie_word_embeddings"]:
            yield "lm_head.weight", (config["vocab_size"], hidden)

    def drawn(self) -> dict[str, np.ndarray]:
        """Tensor name -> float32 values before they are rounded to the stored type."""
        bits = np.random.PCG64(self.seed)
        return {name: self._draw(bits, name, shape) for name, shape in self.shapes()}

    def weights(self) -> dict[str, np.ndarray]:
        """Tensor name -> the stored values as float32."""
        return {name: round_to(values, self.dtype) for name, values in self.drawn().items()}

    def ids(self, tokens: int = TOKENS) -> list[int]:
        """The prompt: ``tokens`` ids, first and last id of the vocabulary among them."""
        vocab = self.config_json()["vocab_size"]
        raw = np.random.PCG64(self.seed + 1).random_raw(tokens)
        ids = [int(word % vocab) for word in raw]
        ids[1], ids[2] = 0, vocab - 1
        return ids

    def write(self, folder: Path) -> Path:
        """Write the model folder; gives the folder back."""
        config = self.config_json()
        words = {f"t{token}": token for token in range(config["vocab_size"])}
        tokenizer = {
            "version": "1.0",
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
        }
        return write_checkpoint(folder, config, self.drawn(), self.dtype, tokenizer=tokenizer)

    def digest(self) -> str:
        """sha256 of config and weights: a golden file says which checkpoint it belongs to."""
        digest = hashlib.sha256(json.dumps(self.config_json(), sort_keys=True).encode())
        for name, values in self.drawn().items():
            digest.update(name.encode() + encode(values, self.dtype))
        return digest.hexdigest()

    def _draw(self, bits: np.random.PCG64, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform in [-s, s) with s a power of two, or in [0.5, 1.5) for norm weights.

        A linear's s is the power of two next to sqrt(3 / inputs): outputs as large as inputs.
        """
        count = math.prod(shape)
        unit = (bits.random_raw(count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
        power = next((p for ending, p in self.scale.items() if name.endswith(ending)), 0)
        if name.endswith("norm.weight"):
            unit = 1.0 + unit / 2
        elif name.endswith(".bias"):
            power -= 1
        elif not name.endswith("embed_tokens.weight"):
            power += round(math.log2(math.sqrt(3 / shape[-1])))
        return (unit * 2.0**power).astype(np.float32).reshape(shape)


def data_file(name: str) -> Path:
    """Where the golden file of that name is."""
    return DATA / f"{name}.safetensors"


_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

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

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("gqa-6-3", {}, seed=100),
        Recipe("gqa-9-3-bf16", {"num_attention_heads": 9, "head_dim": 6}, "BF16", seed=200),
        # Defaults of the family: head_dim, kv heads and eps are not in the file (S11, S14).
        Recipe(
            "mha-4-defaults",
            {"num_attention_heads": 4, "head_dim": None, "num_key_value_heads": None}
            | {"hidden_size": 40, "rms_norm_eps": None, "tie_word_embeddings": True},
            seed=300,
        ),
        Recipe(
            "gqa-8-4-f16",
            {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 32}
            | {"head_dim": 10, "tie_word_embeddings": True, "intermediate_size": 37}
            | {"vocab_size": 50},
            "F16",
            seed=400,
        ),
        # One kv head; head_dim 20 spans two vectors of 16 lanes with a tail.
        Recipe(
            "mqa-3-1",
            {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20},
            seed=500,
        ),
        # S04: q_proj is [64, 32] and o_proj [32, 64].
        Recipe(
            "head-dim-16-of-8",
            {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
            | {"head_dim": 16, "tie_word_embeddings": True, "intermediate_size": 44},
            seed=600,
        ),
        Recipe("attention-bias-bf16", {"attention_bias": True}, "BF16", seed=700),
        Recipe("all-biases-f16", {"attention_bias": True, "mlp_bias": True}, "F16", seed=800),
        # S02: the key was called type before it was called rope_type.
        Recipe(
            "rope-linear-old",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            seed=900,
        ),
        Recipe(
            "rope-linear-new-bf16",
            {"rope_theta": None}
            | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}},
            "BF16",
            seed=1000,
        ),
        # Wavelengths from 6.3 to 3.5e5 around 16 and 64: each branch of the llama3 rule is taken.
        Recipe(
            "rope-llama3-old",
            {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "head_dim": 12}
            | {"intermediate_size": 33, "vocab_size": 49},
            seed=1100,
        ),
        Recipe(
            "rope-llama3-new",
            {"rope_theta": None, "num_key_value_heads": 2, "tie_word_embeddings": True}
            | {"rope_parameters": {**LLAMA3, "rope_theta": 10000.0}},
            seed=1200,
        ),
        # S01: theta stands in the new block only.
        Recipe(
            "rope-theta-new",
            {"rope_theta": None}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            seed=1300,
        ),
        # S44 and deep softmaxes: embeddings near 1000, scores far apart.
        Recipe(
            "large-norms-bf16",
            {"tie_word_embeddings": True},
            "BF16",
            {"embed_tokens.weight": 10, "q_proj.weight": 2, "k_proj.weight": 2}
            | {"down_proj.weight": 6, "up_proj.weight": 4},
            seed=1400,
        ),
        # Mean square near eps: where eps stands decides the first digit.
        Recipe(
            "small-norms",
            {},
            scale={"embed_tokens.weight": -8, "o_proj.weight": -8},
            seed=1500,
        ),
    )
}
