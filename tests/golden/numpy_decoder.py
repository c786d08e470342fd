"""A forward pass in NumPy that can be made wrong on purpose, one fault at a time (`FAULTS`).

Sums run in float64, each stage is rounded to float32.
"""

from __future__ import annotations

import math

import numpy as np

from golden.faults import FAULTS
from golden.numpy_rotary import frequencies
from kestrel.stages import Geometry, LayerGeometry, rope_lengths

__all__ = ["forward"]

Tables = tuple[np.ndarray, np.ndarray]


def forward(
    geometry: Geometry,
    weights: dict[str, np.ndarray],
    ids: list[int],
    decode_from: int | None = None,
    fault: str = "",
) -> dict[str, np.ndarray]:
    """Every stage [N, width] in float32, with ``fault`` (a key of `FAULTS`, or "" for none).

    The ids come in one call, or ``decode_from`` of them do and the others one by one.
    """
    if fault and fault not in FAULTS:
        raise ValueError(f"fault: expected one of {list(FAULTS)}, found {fault!r}")
    return _Forward(geometry, weights, fault).run(ids, decode_from)


class _Forward:
    def __init__(self, geometry: Geometry, weights: dict[str, np.ndarray], fault: str) -> None:
        self.geometry, self.weights, self.fault = geometry, weights, fault
        self.stages: dict[str, np.ndarray] = {}

    def run(self, ids: list[int], decode_from: int | None) -> dict[str, np.ndarray]:
        geometry = self.geometry
        scale = geometry.embedding_multiplier
        if self.fault == "embeddings scaled by a bfloat16":
            scale = float(_bfloat16(np.array(scale)))
        if self.fault == "embeddings not scaled":
            scale = 1.0
        table = self.weights["model.embed_tokens.weight"].astype(np.float64)
        x = self.keep("model.embed_tokens", table[ids] * scale)
        lengths = rope_lengths(len(ids), decode_from)
        if self.fault in (
            "frequencies of every token's own length",
            "cache kept past the original length",
        ):
            lengths = np.arange(1, len(ids) + 1)
        if self.fault == "frequencies of the last length for all":
            lengths = np.full_like(lengths, len(ids))
        tables = {name: self.tables(name, lengths) for name in geometry.ropes}
        for index, layer in enumerate(geometry.layers):
            at = f"model.layers.{index}"
            start = x
            x = self.attention_block(at, x, layer, tables)
            x = self.mlp_block(at, x, start)
        x = self.norm("model.norm", x)
        tied = "lm_head.weight" not in self.weights or self.fault == "head tied although untied"
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        self.logits(self.keep("lm_head", x @ head.astype(np.float64).T))
        return self.stages

    def logits(self, x: np.ndarray) -> None:
        geometry = self.geometry
        cap, scale = geometry.final_logit_softcapping, geometry.logits_scaling
        x = x * scale if self.fault == "logits multiplied" else x / scale
        if cap and self.fault != "logits not capped":
            x = cap * np.tanh(x / cap)
        if geometry.has_logits:
            self.keep("logits", x)

    def keep(self, name: str, value: np.ndarray) -> np.ndarray:
        self.stages[name] = value.astype(np.float32)
        return self.stages[name].astype(np.float64)

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        value = x @ self.weights[f"{name}.weight"].astype(np.float64).T
        missing = {
            "bias missing": True,
            "implied bias missing": True,
            "o_proj bias missing": name.endswith("o_proj"),
            "down_proj bias missing": name.endswith("down_proj"),
        }.get(self.fault, False)
        if f"{name}.bias" in self.weights and not missing:
            value = value + self.weights[f"{name}.bias"]
        return self.keep(name, value)

    def norm(self, name: str, x: np.ndarray, heads: int = 1) -> np.ndarray:
        """``heads`` runs of columns, each by its own root mean square."""
        eps, weight = self.geometry.rms_norm_eps, self.weights[f"{name}.weight"].astype(np.float64)
        if self.fault == "eps 1e-5 whatever the family":
            eps = 1e-5
        if self.fault != "norm weight alone":
            weight = weight + self.geometry.norm_offset
        if self.fault == "norm weight plus one":
            weight = weight + 1
        runs = x.reshape(len(x), heads, -1)
        square = np.mean(runs * runs, axis=-1, keepdims=True)
        if self.fault == "eps outside the root":
            scaled = runs / (np.sqrt(square) + eps)
        else:
            scaled = runs / np.sqrt(square + eps)
        scaled = scaled.reshape(x.shape)
        if self.fault == "norm rounded to bfloat16":
            scaled = _bfloat16(scaled)
        return self.keep(name, scaled * np.tile(weight, x.shape[1] // len(weight)))

    def tables(self, name: str, lengths: np.ndarray) -> Tables:
        ropes = self.geometry.ropes
        base = sorted(ropes)[0] if self.fault == "one base for all layers" else name
        frequency, scale = frequencies(ropes[base], lengths, self.fault)
        positions = np.arange(len(lengths)) + (self.fault == "rope positions from one")
        angle = positions[:, None] * frequency
        if self.fault == "rope angles in bfloat16":
            angle = _bfloat16(angle)
        return (
            self.keep(f"{name}.cos", np.cos(angle) * scale),
            self.keep(f"{name}.sin", np.sin(angle) * scale),
        )

    def rope(self, name: str, x: np.ndarray, tables: Tables) -> np.ndarray:
        cos, sin = (table[:, None] for table in tables)
        heads = x.reshape(len(x), -1, self.geometry.head_dim)
        dim = 2 * cos.shape[-1]
        at = heads.shape[-1] - dim if self.fault == "last columns rotated" else 0
        part = heads[..., at : at + dim]
        a, b = np.split(part, 2, axis=-1)
        if self.fault == "rope rotates pairs":
            a, b = part[..., 0::2], part[..., 1::2]
        value = np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
        if self.fault == "rope rotates pairs":
            value = value.reshape(*a.shape[:-1], 2, -1).swapaxes(-1, -2)
        turned = heads.copy()
        turned[..., at : at + dim] = value.reshape(part.shape)
        return self.keep(name, turned.reshape(x.shape))

    def attention_block(
        self, layer: str, x: np.ndarray, kind: LayerGeometry, tables: dict[str, Tables]
    ) -> np.ndarray:
        at, geometry = f"{layer}.self_attn", self.geometry
        before, after = geometry.attention_norm, geometry.attention_output_norm
        h = self.norm(f"{layer}.{before}", x) if before else x
        if self.fault == "norm before the block":
            h = self.norm(f"{layer}.{after}", x)
        q, k, v = (self.linear(f"{at}.{part}_proj", h) for part in "qkv")
        if geometry.qk_norm:
            q = self.qk_norm(f"{at}.q_norm", q, geometry.num_attention_heads)
            k = self.qk_norm(f"{at}.k_norm", k, geometry.num_key_value_heads)
        rope = kind.rope
        if self.fault == "layers without rope rotated":
            rope = rope or "model.rotary_emb"
        if rope:
            q, k = (
                self.rope(f"{at}.{part}_rope", rows, tables[rope])
                for part, rows in (("q", q), ("k", k))
            )
        if self.fault == "second layer only: values from keys" and layer.endswith(".1"):
            v = k
        if self.fault == "cache in float16":
            k, v = (rows.astype(np.float16).astype(np.float64) for rows in (k, v))
        a = self.keep(f"{at}.attn_output", self.attend(q, k, v, kind.window))
        if self.fault == "sum in float32 of 2 ** 14 too many":
            a = ((a.astype(np.float32) + np.float32(2**14)) - np.float32(2**14)).astype(np.float64)
        y = self.linear(f"{at}.o_proj", a)
        return self.add(f"{at}.residual", x, y, f"{layer}.{after}" if after else "")

    def qk_norm(self, name: str, x: np.ndarray, heads: int) -> np.ndarray:
        if self.fault == "queries and keys not normed":
            return self.keep(name, x)
        by_head = {
            "queries and keys normed over all heads": False,
            "queries and keys normed by head": True,
        }.get(self.fault, self.geometry.qk_norm == "head")
        return self.norm(name, x, heads if by_head else 1)

    def add(self, name: str, x: np.ndarray, y: np.ndarray, norm: str) -> np.ndarray:
        scale = 1.0 if self.fault == "sums not scaled" else self.geometry.residual_multiplier
        if norm and self.fault == "norm after the sum":
            self.norm(norm, y)
            return self.keep(name, x + y)
        return self.keep(name, x + scale * (self.norm(norm, y) if norm else y))

    def hidden(self, tokens: int, window: int | None) -> np.ndarray:
        """What each token (rows) does not see (columns)."""
        late = self.fault == "mask one position late"
        hidden = np.triu(np.ones((tokens, tokens), bool), 2 if late else 1)
        if self.fault == "attention misses the last block":
            hidden[16:, 16:] = ~np.eye(tokens - 16, dtype=bool)
        windows = {each.window for each in self.geometry.layers} - {None}
        if self.fault == "window in all layers":
            window = max(windows)
        if self.fault == "window in the other layers":
            window = None if window else max(windows)
        if window is None or self.fault == "window ignored":
            return hidden
        wider = {"window one position wider": 1, "window one position narrower": -1}
        first = np.arange(tokens) + 1 - window - wider.get(self.fault, 0)
        if self.fault == "window of whole blocks":
            first = first // 16 * 16
        return hidden | (np.arange(tokens) < first[:, None])

    def attend(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None
    ) -> np.ndarray:
        geometry, tokens = self.geometry, len(q)
        heads, kv_heads = geometry.num_attention_heads, geometry.num_key_value_heads
        width, cap = geometry.head_dim, geometry.attn_logit_softcapping
        q = q.reshape(tokens, heads, width)
        k, v = (rows.reshape(tokens, kv_heads, width) for rows in (k, v))
        hidden = self.hidden(tokens, window)
        scale = geometry.attention_scale or width**-0.5
        if self.fault == "score scale from head_dim":
            scale = width**-0.5
        if self.fault == "score scale from hidden / heads":
            scale = (len(self.weights["model.norm.weight"]) // heads) ** -0.5
        out = np.empty_like(q)
        for head in range(heads):
            kv = head % kv_heads if self.fault == "kv heads tiled" else head // (heads // kv_heads)
            score = q[:, head] @ k[:, kv].T * scale
            if cap and self.fault != "scores not capped":
                score = cap * np.tanh(score / cap)
            score = np.where(hidden, -np.inf, score)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, kv]
        return out.reshape(tokens, -1)

    def mlp_block(self, layer: str, x: np.ndarray, start: np.ndarray) -> np.ndarray:
        before, after = self.geometry.mlp_norm, self.geometry.mlp_output_norm
        h = self.norm(f"{layer}.{before}", x) if before else x
        names = [f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"]
        gate, up = (self.linear(name, h) for name in names)
        if self.fault == "gate and up swapped":
            gate, up = up, gate
            for name, value in zip(names, (gate, up)):
                self.keep(name, value)
        h = self.keep(f"{layer}.mlp.swiglu", self.activate(gate) * up)
        if self.fault == "activations in bfloat16":
            h = _bfloat16(h)
        down = self.linear(f"{layer}.mlp.down_proj", h)
        x = start if self.fault == "residual before the norm's" else x
        return self.add(layer, x, down, f"{layer}.{after}" if after else "")

    def activate(self, gate: np.ndarray) -> np.ndarray:
        if self.fault == "gelu by the error function":
            return 0.5 * gate * (1 + np.vectorize(math.erf)(gate / math.sqrt(2)))
        is_silu = self.geometry.hidden_act == "silu"
        if is_silu != (self.fault in ("gelu for silu", "silu for gelu")):
            return gate / (1 + np.exp(-gate))
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))


def _bfloat16(x: np.ndarray) -> np.ndarray:
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)
