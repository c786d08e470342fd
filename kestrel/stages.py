"""What each stage of a Llama decoder is: a function of earlier stages and of the weights.

This is the definition that `kestrel diff` and the golden tests hold an implementation to. It is
written from transformers' ``models/llama/modeling_llama.py`` and knows nothing of Kestrel's own
forward pass, its recorder or its backends: tests/golden compares both with transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kestrel import bounds
from kestrel.bounds import Arithmetic, Array, Bounded

if TYPE_CHECKING:
    from kestrel.checkpoint import TensorView
    from kestrel.models.config import DecoderConfig
    from kestrel.models.weights import DecoderWeights

__all__ = ["Geometry", "NamedWeights", "Stage", "llama_stages"]

#: Stage name -> array [N, ...]; ``token_ids`` is there too.
Values = Mapping[str, Array]
#: Tensor name of the checkpoint -> array of float32 (a narrower type was widened, which is exact).
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Geometry:
    """The numbers of a config that the definitions need, by their names in config.json."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: Mapping[str, object]

    @classmethod
    def of(cls, config: "DecoderConfig") -> "Geometry":
        """The geometry of a model that Kestrel has loaded."""
        rope = config.rope
        return cls(
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={
                "rope_type": rope.type,
                "rope_theta": rope.theta,
                "factor": rope.factor,
                "low_freq_factor": rope.low_freq_factor,
                "high_freq_factor": rope.high_freq_factor,
                "original_max_position_embeddings": rope.original_max_position_embeddings,
            },
        )


class NamedWeights(Mapping):
    """The weights that a model is bound to, under the names that the definitions use.

    Each look-up widens the stored tensor to float32 and keeps nothing, so that a large model is
    compared in little memory. A tied head has no name of its own.
    """

    def __init__(self, weights: "DecoderWeights") -> None:
        tensors = {
            "model.embed_tokens.weight": weights.embed_tokens,
            "model.norm.weight": weights.norm.weight,
        }
        if weights.lm_head.weight is not weights.embed_tokens:
            tensors["lm_head.weight"] = weights.lm_head.weight
        for index, layer in enumerate(weights.layers):
            at = f"model.layers.{index}"
            for norm in (layer.input_norm, layer.mlp_norm):
                tensors[f"{at}.{norm.name}.weight"] = norm.weight
            for block, names in _LINEARS.items():
                for name in names:
                    linear = getattr(layer, name)
                    tensors[f"{at}.{block}.{name}.weight"] = linear.weight
                    if linear.bias is not None:
                        tensors[f"{at}.{block}.{name}.bias"] = linear.bias
        self._tensors: dict[str, "TensorView"] = tensors

    def __getitem__(self, name: str) -> Array:
        return self._tensors[name].to_numpy_f32()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


_LINEARS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True)
class Stage:
    """One stage: its Hugging Face name, the stages it reads, and its value with an error bound.

    ``evaluate(values, weights, arithmetic)`` reads only ``inputs`` from ``values`` and gives
    ``(value, bound)`` as `kestrel.bounds` describes.
    """

    name: str
    inputs: tuple[str, ...]
    evaluate: Callable[[Values, Weights, Arithmetic], Bounded]


def llama_stages(geometry: Geometry) -> Iterator[Stage]:
    """The stages of a model in the order of the forward pass."""
    yield Stage(
        "model.embed_tokens",
        ("token_ids",),
        lambda values, weights, how: bounds.exact(
            weights["model.embed_tokens.weight"][values["token_ids"]]
        ),
    )
    yield _rotary(0, geometry)
    yield _rotary(1, geometry)
    x = "model.embed_tokens"
    for index in range(geometry.num_hidden_layers):
        layer = f"model.layers.{index}"
        yield from _attention_block(layer, x, geometry)
        yield from _mlp_block(layer, geometry)
        x = layer
    yield _norm("model.norm", x, geometry)
    yield _linear("lm_head", "model.norm", tied="model.embed_tokens")


def _attention_block(layer: str, x: str, geometry: Geometry) -> Iterator[Stage]:
    norm, attn = f"{layer}.input_layernorm", f"{layer}.self_attn"
    heads, kv_heads = geometry.num_attention_heads, geometry.num_key_value_heads
    yield _norm(norm, x, geometry)
    yield from (_linear(f"{attn}.{name}", norm) for name in ("q_proj", "k_proj", "v_proj"))
    yield _rope(f"{attn}.q_rope", f"{attn}.q_proj", heads)
    yield _rope(f"{attn}.k_rope", f"{attn}.k_proj", kv_heads)
    query, key, value = f"{attn}.q_rope", f"{attn}.k_rope", f"{attn}.v_proj"
    yield Stage(
        f"{attn}.attn_output",
        (query, key, value),
        lambda values, weights, how: bounds.attention(
            values[query], values[key], values[value], heads, kv_heads, how
        ),
    )
    yield _linear(f"{attn}.o_proj", f"{attn}.attn_output")
    yield _sum(f"{attn}.residual", x, f"{attn}.o_proj")


def _mlp_block(layer: str, geometry: Geometry) -> Iterator[Stage]:
    norm, mlp = f"{layer}.post_attention_layernorm", f"{layer}.mlp"
    gate, up = f"{mlp}.gate_proj", f"{mlp}.up_proj"
    yield _norm(norm, f"{layer}.self_attn.residual", geometry)
    yield _linear(gate, norm)
    yield _linear(up, norm)
    yield Stage(
        f"{mlp}.swiglu",
        (gate, up),
        lambda values, weights, how: bounds.swiglu(values[gate], values[up], how),
    )
    yield _linear(f"{mlp}.down_proj", f"{mlp}.swiglu")
    yield _sum(layer, f"{layer}.self_attn.residual", f"{mlp}.down_proj")


def _norm(name: str, x: str, geometry: Geometry) -> Stage:
    return Stage(
        name,
        (x,),
        lambda values, weights, how: bounds.rms_norm(
            values[x], weights[f"{name}.weight"], geometry.rms_norm_eps, how
        ),
    )


def _linear(name: str, x: str, tied: str = "") -> Stage:
    def evaluate(values: Values, weights: Weights, how: Arithmetic) -> Bounded:
        weight = f"{name}.weight"
        if weight not in weights and tied:
            weight = f"{tied}.weight"
        bias = weights[f"{name}.bias"] if f"{name}.bias" in weights else None
        return bounds.linear(values[x], weights[weight], bias, how)

    return Stage(name, (x,), evaluate)


def _rope(name: str, x: str, heads: int) -> Stage:
    cos, sin = "model.rotary_emb.cos", "model.rotary_emb.sin"
    return Stage(
        name,
        (x, cos, sin),
        lambda values, weights, how: bounds.rope(values[x], values[cos], values[sin], heads, how),
    )


def _sum(name: str, x: str, y: str) -> Stage:
    return Stage(
        name, (x, y), lambda values, weights, how: bounds.residual(values[x], values[y], how)
    )


def _rotary(part: int, geometry: Geometry) -> Stage:
    def evaluate(values: Values, weights: Weights, how: Arithmetic) -> Bounded:
        positions = np.arange(len(values["token_ids"]))
        half = geometry.head_dim // 2
        lengths = np.full_like(positions, len(positions))
        return bounds.rotary(positions, lengths, half, geometry.rope_parameters, how)[part]

    return Stage(("model.rotary_emb.cos", "model.rotary_emb.sin")[part], ("token_ids",), evaluate)
