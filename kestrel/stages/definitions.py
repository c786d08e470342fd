"""The stages, each with its inputs, its value and the bound of an implementation's error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kestrel import bounds
from kestrel.bounds import Arithmetic, Array, Bounded
from kestrel.stages.geometry import Geometry, LayerGeometry

__all__ = ["Stage", "rope_lengths", "stages_of"]

#: Stage name -> array [N, ...]; ``token_ids`` and ``rope_lengths``, both [N], are there too.
Values = Mapping[str, Array]
#: Tensor name of the checkpoint -> array of float32 (a narrower type was widened, which is exact).
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Stage:
    """One stage: its Hugging Face name, the stages it reads, and its value with an error bound.

    ``evaluate(values, weights, arithmetic)`` reads only ``inputs`` from ``values`` and gives
    ``(value, bound)`` as `kestrel.bounds` describes.
    """

    name: str
    inputs: tuple[str, ...]
    evaluate: Callable[[Values, Weights, Arithmetic], Bounded]


def rope_lengths(tokens: int, decode_from: int | None = None) -> Array:
    """Length of the sequence at the end of the call that brought each token: int64 [tokens].

    All came in one call, or ``decode_from`` of them did and the others one by one.
    """
    return np.maximum(np.arange(1, tokens + 1), tokens if decode_from is None else decode_from)


def stages_of(geometry: Geometry) -> Iterator[Stage]:
    """The stages of a model in the order of the forward pass."""
    yield Stage(
        "model.embed_tokens",
        ("token_ids",),
        lambda values, weights, how: bounds.scaled(
            weights["model.embed_tokens.weight"][values["token_ids"]],
            geometry.embedding_multiplier,
            how,
        ),
    )
    for name, parameters in geometry.ropes.items():
        yield _rotary(name, 0, parameters)
        yield _rotary(name, 1, parameters)
    x = "model.embed_tokens"
    for index, layer in enumerate(geometry.layers):
        at = f"model.layers.{index}"
        yield from _attention_block(at, x, layer, geometry)
        yield from _mlp_block(at, geometry)
        x = at
    yield _norm("model.norm", x, geometry)
    yield _linear("lm_head", "model.norm", tied="model.embed_tokens")
    if geometry.has_logits:
        yield Stage(
            "logits",
            ("lm_head",),
            lambda values, weights, how: bounds.soft_cap(
                values["lm_head"],
                1 / geometry.logits_scaling,
                geometry.final_logit_softcapping,
                how,
            ),
        )


def _attention_block(
    at: str, x: str, layer: LayerGeometry, geometry: Geometry
) -> Iterator[Stage]:
    attn, sum_name = f"{at}.self_attn", f"{at}.self_attn.residual"
    heads = {"q": geometry.num_attention_heads, "k": geometry.num_key_value_heads}
    h, norm = _named_norm(at, geometry.attention_norm, x, geometry)
    yield from norm
    yield from (_linear(f"{attn}.{part}_proj", h) for part in "qkv")
    seen = {part: f"{attn}.{part}_proj" for part in "qkv"}
    for part in "qk" if geometry.qk_norm else "":
        groups = heads[part] if geometry.qk_norm == "head" else 1
        yield _norm(f"{attn}.{part}_norm", seen[part], geometry, groups)
        seen[part] = f"{attn}.{part}_norm"
    for part in "qk" if layer.rope else "":
        yield _rope(f"{attn}.{part}_rope", seen[part], f"{layer.rope}", heads[part])
        seen[part] = f"{attn}.{part}_rope"
    yield _attention(f"{attn}.attn_output", seen["q"], seen["k"], seen["v"], layer, geometry)
    yield _linear(f"{attn}.o_proj", f"{attn}.attn_output")
    y, norm = _named_norm(at, geometry.attention_output_norm, f"{attn}.o_proj", geometry)
    yield from norm
    yield _sum(sum_name, x, y, geometry)


def _mlp_block(at: str, geometry: Geometry) -> Iterator[Stage]:
    x, mlp = f"{at}.self_attn.residual", f"{at}.mlp"
    gate, up = f"{mlp}.gate_proj", f"{mlp}.up_proj"
    h, norm = _named_norm(at, geometry.mlp_norm, x, geometry)
    yield from norm
    yield _linear(gate, h)
    yield _linear(up, h)
    product = {"silu": bounds.swiglu, "gelu_pytorch_tanh": bounds.geglu}[geometry.hidden_act]
    yield Stage(
        f"{mlp}.swiglu",
        (gate, up),
        lambda values, weights, how: product(values[gate], values[up], how),
    )
    yield _linear(f"{mlp}.down_proj", f"{mlp}.swiglu")
    y, norm = _named_norm(at, geometry.mlp_output_norm, f"{mlp}.down_proj", geometry)
    yield from norm
    yield _sum(at, x, y, geometry)


def _named_norm(
    at: str, name: str | None, x: str, geometry: Geometry
) -> tuple[str, list[Stage]]:
    """The stage to go on from, and the norm that leads to it; x itself where there is none."""
    if name is None:
        return x, []
    return f"{at}.{name}", [_norm(f"{at}.{name}", x, geometry)]


def _norm(name: str, x: str, geometry: Geometry, groups: int = 1) -> Stage:
    def evaluate(values: Values, weights: Weights, how: Arithmetic) -> Bounded:
        weight, columns = weights[f"{name}.weight"], values[x].shape[1]
        if groups * len(weight) != columns:
            raise ValueError(f"{name}: {groups} runs of {len(weight)} are not {columns} columns")
        offset = geometry.norm_offset
        return bounds.rms_norm(values[x], weight, geometry.rms_norm_eps, how, offset)

    return Stage(name, (x,), evaluate)


def _linear(name: str, x: str, tied: str = "") -> Stage:
    def evaluate(values: Values, weights: Weights, how: Arithmetic) -> Bounded:
        weight = f"{name}.weight"
        if weight not in weights and tied:
            weight = f"{tied}.weight"
        bias = weights[f"{name}.bias"] if f"{name}.bias" in weights else None
        return bounds.linear(values[x], weights[weight], bias, how)

    return Stage(name, (x,), evaluate)


def _rotary(name: str, part: int, parameters: Mapping[str, object]) -> Stage:
    def evaluate(values: Values, weights: Weights, how: Arithmetic) -> Bounded:
        lengths, half = values["rope_lengths"], int(parameters["rotary_dim"]) // 2
        return bounds.rotary(np.arange(len(lengths)), lengths, half, parameters, how)[part]

    return Stage(f"{name}.{('cos', 'sin')[part]}", ("rope_lengths",), evaluate)


def _rope(name: str, x: str, tables: str, heads: int) -> Stage:
    cos, sin = f"{tables}.cos", f"{tables}.sin"
    return Stage(
        name,
        (x, cos, sin),
        lambda values, weights, how: bounds.rope(values[x], values[cos], values[sin], heads, how),
    )


def _attention(
    name: str, q: str, k: str, v: str, layer: LayerGeometry, geometry: Geometry
) -> Stage:
    return Stage(
        name,
        (q, k, v),
        lambda values, weights, how: bounds.attention(
            values[q],
            values[k],
            values[v],
            geometry.num_attention_heads,
            geometry.num_key_value_heads,
            how,
            geometry.attention_scale,
            layer.window,
            geometry.attn_logit_softcapping,
        ),
    )


def _sum(name: str, x: str, y: str, geometry: Geometry) -> Stage:
    return Stage(
        name,
        (x, y),
        lambda values, weights, how: bounds.residual(
            values[x], values[y], how, geometry.residual_multiplier
        ),
    )
