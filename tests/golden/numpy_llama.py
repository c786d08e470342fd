"""A Llama forward pass in NumPy that can be made wrong on purpose, one fault at a time.

It shows that the bounds catch the faults that real runtimes shipped (the numbers S.. name the
public reports in tests' docstrings). Sums run in float64, each stage is rounded to float32.
"""

from __future__ import annotations

import numpy as np

from kestrel.stages import Geometry

__all__ = ["FAULTS", "forward"]

#: Fault -> (recipe that shows it, first stage that must be beyond its bound).
FAULTS: dict[str, tuple[str, str]] = {
    "rope rotates pairs": ("gqa-6-3", "model.layers.0.self_attn.q_rope"),
    "rope angles in bfloat16": ("gqa-6-3", "model.rotary_emb.cos"),
    "rope positions from one": ("gqa-6-3", "model.rotary_emb.cos"),
    "rope theta 10000 whatever the config": ("rope-theta-new", "model.rotary_emb.cos"),
    "rope scaling ignored": ("rope-linear-old", "model.rotary_emb.cos"),
    "rope scaling without its blend": ("rope-llama3-old", "model.rotary_emb.cos"),
    "kv heads tiled": ("gqa-6-3", "model.layers.0.self_attn.attn_output"),
    "mask one position late": ("gqa-6-3", "model.layers.0.self_attn.attn_output"),
    "attention misses the last block": ("gqa-6-3", "model.layers.0.self_attn.attn_output"),
    "score scale from hidden / heads": (
        "head-dim-16-of-8",
        "model.layers.0.self_attn.attn_output",
    ),
    "cache in float16": ("gqa-6-3", "model.layers.0.self_attn.attn_output"),
    "eps outside the root": ("gqa-6-3", "model.layers.0.input_layernorm"),
    "eps 1e-5 whatever the family": ("mha-4-defaults", "model.layers.0.input_layernorm"),
    "norm rounded to bfloat16": ("large-norms-bf16", "model.layers.0.input_layernorm"),
    "norm weight plus one": ("small-norms", "model.layers.0.input_layernorm"),
    "bias missing": ("attention-bias-bf16", "model.layers.0.self_attn.q_proj"),
    "o_proj bias missing": ("attention-bias-bf16", "model.layers.0.self_attn.o_proj"),
    "down_proj bias missing": ("all-biases-f16", "model.layers.0.mlp.down_proj"),
    "gate and up swapped": ("gqa-6-3", "model.layers.0.mlp.gate_proj"),
    "gelu for silu": ("gqa-6-3", "model.layers.0.mlp.swiglu"),
    "residual before the norm's": ("gqa-6-3", "model.layers.0"),
    "head tied although untied": ("gqa-6-3", "lm_head"),
    "second layer only: values from keys": ("gqa-6-3", "model.layers.1.self_attn.attn_output"),
    "activations in bfloat16": ("gqa-6-3", "model.layers.0.mlp.down_proj"),
    "sum in float32 of 2 ** 14 too many": ("gqa-6-3", "model.layers.0.self_attn.o_proj"),
}


def forward(
    geometry: Geometry, weights: dict[str, np.ndarray], ids: list[int], fault: str = ""
) -> dict[str, np.ndarray]:
    """Every stage [N, width] in float32, with ``fault`` (a key of `FAULTS`, or "" for none)."""
    if fault and fault not in FAULTS:
        raise ValueError(f"fault: expected one of {list(FAULTS)}, found {fault!r}")
    return _Forward(geometry, weights, fault).run(ids)


class _Forward:
    def __init__(self, geometry: Geometry, weights: dict[str, np.ndarray], fault: str) -> None:
        self.geometry, self.weights, self.fault = geometry, weights, fault
        self.stages: dict[str, np.ndarray] = {}

    def run(self, ids: list[int]) -> dict[str, np.ndarray]:
        x = self.keep("model.embed_tokens", self.weights["model.embed_tokens.weight"][ids])
        cos, sin = self.tables(len(ids))
        for index in range(self.geometry.num_hidden_layers):
            layer = f"model.layers.{index}"
            start = x
            x = self.attention_block(layer, x, cos, sin)
            x = self.mlp_block(layer, x, start)
        x = self.norm("model.norm", x)
        tied = "lm_head.weight" not in self.weights or self.fault == "head tied although untied"
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        self.keep("lm_head", x @ head.astype(np.float64).T)
        return self.stages

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        self.stages[name] = value.astype(np.float32)
        return self.stages[name].astype(np.float64)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        value = x @ self.weights[f"{name}.weight"].astype(np.float64).T
        missing = {
            "bias missing": True,
            "o_proj bias missing": name.endswith("o_proj"),
            "down_proj bias missing": name.endswith("down_proj"),
        }.get(self.fault, False)
        if f"{name}.bias" in self.weights and not missing:
            value = value + self.weights[f"{name}.bias"]
        return self.keep(name, value)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        eps, weight = self.geometry.rms_norm_eps, self.weights[f"{name}.weight"].astype(np.float64)
        if self.fault == "eps 1e-5 whatever the family":
            eps = 1e-5
        if self.fault == "norm weight plus one":
            weight = weight + 1
        square = np.mean(x * x, axis=-1, keepdims=True)
        if self.fault == "eps outside the root":
            scaled = x / (np.sqrt(square) + eps)
        else:
            scaled = x / np.sqrt(square + eps)
        if self.fault == "norm rounded to bfloat16":
            scaled = _bfloat16(scaled)
        return self.keep(name, scaled * weight)

    def tables(self, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        rope, half = dict(self.geometry.rope_parameters), self.geometry.head_dim // 2
        if self.fault == "rope theta 10000 whatever the config":
            rope["rope_theta"] = 10000.0
        frequency = rope["rope_theta"] ** -(np.arange(half) / half)
        wavelength = 2 * np.pi / frequency
        if self.fault == "rope scaling ignored":
            pass
        elif rope["rope_type"] == "linear":
            frequency = frequency / rope["factor"]
        elif rope["rope_type"] == "llama3":
            length, factor = rope["original_max_position_embeddings"], rope["factor"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            blend = (length / wavelength - low) / (high - low)
            if self.fault == "rope scaling without its blend":
                blend = np.round(blend)
            blended = (1 - blend) * frequency / factor + blend * frequency
            frequency = np.where(
                wavelength > length / low,
                frequency / factor,
                np.where(wavelength < length / high, frequency, blended),
            )
        positions = np.arange(tokens) + (self.fault == "rope positions from one")
        angle = positions[:, None] * frequency
        if self.fault == "rope angles in bfloat16":
            angle = _bfloat16(angle)
        return (
            self.keep("model.rotary_emb.cos", np.cos(angle)),
            self.keep("model.rotary_emb.sin", np.sin(angle)),
        )

    def rope(self, name: str, x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        heads = x.reshape(len(x), -1, self.geometry.head_dim)
        if self.fault == "rope rotates pairs":
            a, b = heads[..., 0::2], heads[..., 1::2]
        else:
            a, b = np.split(heads, 2, axis=-1)
        cos, sin = cos[:, None], sin[:, None]
        rotated = a * cos - b * sin, b * cos + a * sin
        if self.fault == "rope rotates pairs":
            value = np.stack(rotated, axis=-1)
        else:
            value = np.concatenate(rotated, axis=-1)
        return self.keep(name, value.reshape(x.shape))

    def attention_block(
        self, layer: str, x: np.ndarray, cos: np.ndarray, sin: np.ndarray
    ) -> np.ndarray:
        at = f"{layer}.self_attn"
        h = self.norm(f"{layer}.input_layernorm", x)
        q, k, v = (self.linear(f"{at}.{part}", h) for part in ("q_proj", "k_proj", "v_proj"))
        q, k = self.rope(f"{at}.q_rope", q, cos, sin), self.rope(f"{at}.k_rope", k, cos, sin)
        if self.fault == "second layer only: values from keys" and layer.endswith(".1"):
            v = k
        if self.fault == "cache in float16":
            k, v = (rows.astype(np.float16).astype(np.float64) for rows in (k, v))
        a = self.keep(f"{at}.attn_output", self.attend(q, k, v))
        if self.fault == "sum in float32 of 2 ** 14 too many":
            a = ((a.astype(np.float32) + np.float32(2**14)) - np.float32(2**14)).astype(np.float64)
        return self.keep(f"{at}.residual", x + self.linear(f"{at}.o_proj", a))

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        geometry, tokens = self.geometry, len(q)
        heads, kv_heads, width = (
            geometry.num_attention_heads,
            geometry.num_key_value_heads,
            geometry.head_dim,
        )
        q = q.reshape(tokens, heads, width)
        k, v = (rows.reshape(tokens, kv_heads, width) for rows in (k, v))
        late = self.fault == "mask one position late"
        hidden = np.triu(np.ones((tokens, tokens), bool), 2 if late else 1)
        if self.fault == "attention misses the last block":
            hidden[16:, 16:] = ~np.eye(tokens - 16, dtype=bool)
        scale = width**-0.5
        if self.fault == "score scale from hidden / heads":
            hidden_size = len(self.weights["model.norm.weight"])
            scale = (hidden_size // heads) ** -0.5
        out = np.empty_like(q)
        for head in range(heads):
            kv = head % kv_heads if self.fault == "kv heads tiled" else head // (heads // kv_heads)
            score = np.where(hidden, -np.inf, q[:, head] @ k[:, kv].T * scale)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, kv]
        return out.reshape(tokens, -1)

    def mlp_block(self, layer: str, x: np.ndarray, start: np.ndarray) -> np.ndarray:
        h = self.norm(f"{layer}.post_attention_layernorm", x)
        names = [f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"]
        gate, up = (self.linear(name, h) for name in names)
        if self.fault == "gate and up swapped":
            gate, up = up, gate
            for name, value in zip(names, (gate, up)):
                self.keep(name, value)
        if self.fault == "gelu for silu":
            active = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            active = gate / (1 + np.exp(-gate))
        h = self.keep(f"{layer}.mlp.swiglu", active * up)
        if self.fault == "activations in bfloat16":
            h = _bfloat16(h)
        down = self.linear(f"{layer}.mlp.down_proj", h)
        return self.keep(layer, (start if self.fault == "residual before the norm's" else x) + down)


def _bfloat16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
