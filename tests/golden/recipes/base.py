"""Tiny random checkpoints, each made bit for bit from a seed with NumPy alone.

A recipe is a config.json and a seed. Weights come from the raw 64-bit output of PCG64, which
NumPy keeps stable between versions (its distributions it does not: NEP 19), as multiples of
2**-24 times a power of two, so that no library function has a say in them. Tests without torch
rebuild the checkpoint that transformers saw when the golden file was made.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from checkpoints import encode, round_to, write_checkpoint

from kestrel import bounds
from kestrel.stages import Geometry

__all__ = ["BASE", "FAR_POSITIONS", "NULL", "Family", "Recipe", "data_file", "far_tables"]

DATA = Path(__file__).parents[1] / "data"
#: Tokens of a golden prompt: more than one cache block of 16, not a multiple of it.
TOKENS = 18
#: Positions of S01 and S41 at which the rotary tables are recorded too.
FAR_POSITIONS = (0, 100, 1000, 1857, 32767, 131071)
#: A value that config.json spells as null; None leaves its key out.
NULL = object()

_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

#: Sizes of the other families' recipes: small files for prompts of several blocks.
BASE: dict[str, object] = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Family:
    """How a class of transformers reads a config.json, and what its checkpoints hold.

    Attributes:
        base: the config.json that recipes add to.
        geometry: config.json to the numbers and names of the definitions.
        biases: config.json to the projections (``q_proj``, ...) that have biases.
        tied: whether the head is the embedding when config.json does not say.
        fused: tensor of a checkpoint -> the projections that it holds, in order of its rows.
    """

    base: dict[str, object]
    geometry: Callable[[dict[str, object]], Geometry]
    biases: Callable[[dict[str, object]], tuple[str, ...]] = lambda config: ()
    tied: bool = False
    fused: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """One checkpoint.

    Attributes:
        name: also the name of the golden file.
        family: what reads it.
        config: what config.json says beyond the family's base; a value of None removes the key.
        dtype: how the weights are stored: F32, F16 or BF16.
        scale: tensor name ending -> power of two by which those weights are multiplied.
        seed: of weights and prompt.
        tokens: of the golden prompt.
        decode_from: tokens of it that come in one call; the others come one by one. None: all do.
        before: recipe of the tokens that were there before all were computed anew; "": none were.
    """

    name: str
    family: Family
    config: dict[str, object]
    dtype: str = "F32"
    scale: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    tokens: int = TOKENS
    decode_from: int | None = None
    before: str = ""

    def config_json(self) -> dict[str, object]:
        """The whole config.json."""
        full = {**self.family.base, **self.config, "torch_dtype": _TORCH_NAMES[self.dtype]}
        given = {key: value for key, value in full.items() if value is not None}
        return {key: None if value is NULL else value for key, value in given.items()}

    def geometry(self) -> Geometry:
        """The config as the stage definitions want it, by the rules of its family."""
        return self.family.geometry(self.config_json())

    @property
    def follows_length(self) -> bool:
        """Whether frequencies follow the length of the sequence."""
        types = {rope["rope_type"] for rope in self.geometry().ropes.values()}
        return bool(types & {"dynamic", "longrope"})

    @property
    def rotated_from(self) -> int | None:
        """``decode_from``, or the tokens that were computed in one call when all were anew."""
        if not self.before:
            return self.decode_from
        (rope,) = self.geometry().ropes.values()
        return rope["original_max_position_embeddings"] + 1

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor, in the order in which they are drawn."""
        config, geometry = self.config_json(), self.geometry()
        hidden = config["hidden_size"]
        yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
        for index in range(len(geometry.layers)):
            for name, shape in self._layer_shapes(config, geometry):
                yield f"model.layers.{index}.{name}", shape
        yield "model.norm.weight", (hidden,)
        if not config.get("tie_word_embeddings", self.family.tied):
            yield "lm_head.weight", (config["vocab_size"], hidden)

    def _layer_shapes(
        self, config: dict[str, object], geometry: Geometry
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        head_dim = geometry.head_dim
        q, kv = geometry.num_attention_heads * head_dim, geometry.num_key_value_heads * head_dim
        if geometry.attention_norm:
            yield f"{geometry.attention_norm}.weight", (hidden,)
        inputs = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
        yield from self._linears("self_attn", inputs, "qkv_proj", config)
        if geometry.qk_norm:
            per_head = geometry.qk_norm == "head"
            yield "self_attn.q_norm.weight", (head_dim if per_head else q,)
            yield "self_attn.k_norm.weight", (head_dim if per_head else kv,)
        yield from self._linears("self_attn", {"o_proj": (hidden, q)}, "", config)
        for norm in (geometry.attention_output_norm, geometry.mlp_norm):
            if norm:
                yield f"{norm}.weight", (hidden,)
        inputs = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden)}
        yield from self._linears("mlp", inputs, "gate_up_proj", config)
        yield from self._linears("mlp", {"down_proj": (hidden, inner)}, "", config)
        if geometry.mlp_output_norm:
            yield f"{geometry.mlp_output_norm}.weight", (hidden,)

    def _linears(
        self, block: str, shapes: dict[str, tuple[int, int]], fused: str, config: dict[str, object]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        if fused in self.family.fused:
            rows = sum(out for out, _ in shapes.values())
            shapes = {fused: (rows, config["hidden_size"])}
        biases = self.family.biases(config)
        for name, (out, into) in shapes.items():
            yield f"{block}.{name}.weight", (out, into)
            if name in biases:
                yield f"{block}.{name}.bias", (out,)

    def drawn(self) -> dict[str, np.ndarray]:
        """Tensor name -> float32 values before they are rounded to the stored type."""
        bits, offset = np.random.PCG64(self.seed), self.geometry().norm_offset
        return {name: self._draw(bits, offset, name, shape) for name, shape in self.shapes()}

    def weights(self) -> dict[str, np.ndarray]:
        """Name in the definitions -> the stored values as float32."""
        stored = {name: round_to(values, self.dtype) for name, values in self.drawn().items()}
        sizes = self._sizes()
        for name in list(stored):
            at, _, module = name.removesuffix(".weight").rpartition(".")
            if module in self.family.fused:
                parts = self.family.fused[module]
                ends = np.cumsum([sizes[part] for part in parts])[:-1]
                rows = np.split(stored.pop(name), ends)
                stored |= {f"{at}.{part}.weight": own for part, own in zip(parts, rows)}
        return stored

    def _sizes(self) -> dict[str, int]:
        geometry, inner = self.geometry(), self.config_json()["intermediate_size"]
        kv = geometry.num_key_value_heads * geometry.head_dim
        q = geometry.num_attention_heads * geometry.head_dim
        return {"q_proj": q, "k_proj": kv, "v_proj": kv, "gate_proj": inner, "up_proj": inner}

    def ids(self, tokens: int | None = None) -> list[int]:
        """The prompt, or another: ids with the vocabulary's first and last among them."""
        vocab = self.config_json()["vocab_size"]
        raw = np.random.PCG64(self.seed + 1).random_raw(tokens or self.tokens)
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

    def _draw(
        self, bits: np.random.PCG64, norm_offset: float, name: str, shape: tuple[int, ...]
    ) -> np.ndarray:
        """Uniform in [-s, s) with s a power of two, or in [0.5, 1.5) for what norms multiply by.

        A linear's s is the power of two next to sqrt(3 / inputs): outputs as large as inputs.
        """
        count = math.prod(shape)
        unit = (bits.random_raw(count) >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
        power = next((p for ending, p in self.scale.items() if name.endswith(ending)), 0)
        if name.endswith("norm.weight"):
            unit = 1.0 - norm_offset + unit / 2
        elif name.endswith(".bias"):
            power -= 1
        elif not name.endswith("embed_tokens.weight"):
            power += round(math.log2(math.sqrt(3 / shape[-1])))
        return (unit * 2.0**power).astype(np.float32).reshape(shape)


def data_file(name: str) -> Path:
    """Where the golden file of that name is."""
    return DATA / f"{name}.safetensors"


def far_tables(
    parameters: Mapping[str, object],
    how: bounds.Arithmetic,
    positions: tuple[int, ...] = FAR_POSITIONS,
) -> tuple[bounds.Bounded, bounds.Bounded]:
    """cos and sin at far positions, with bounds, as one call on all of FAR_POSITIONS gives them."""
    where = np.array(positions)
    lengths = np.full_like(where, max(FAR_POSITIONS) + 1)
    return bounds.rotary(where, lengths, parameters["rotary_dim"] // 2, parameters, how)
