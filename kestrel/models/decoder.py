"""The forward pass of a Llama-family decoder.

Read it as the equations of the model: each call records one operation, and the recorded program
is what every backend runs at every step. Axes: N tokens in the step, L rows whose logits are
wanted, H query heads, K key/value heads, D head dim, C model dim, F feed-forward dim, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.models.rope import attention_scaling, inverse_frequencies

if TYPE_CHECKING:
    from kestrel.cache.paged_cache import PagedCache
    from kestrel.models.config import DecoderConfig
    from kestrel.models.weights import DecoderWeights, LayerWeights
    from kestrel.program.program import Program
    from kestrel.program.recorder import Recorder
    from kestrel.program.values import Value


def decoder(
    r: "Recorder", config: "DecoderConfig", weights: "DecoderWeights", cache: "PagedCache"
) -> "Program":
    """Token ids to logits (Touvron and others 2023, arXiv:2302.13971)."""
    rotary = r.rotary_embedding(
        r.inputs.positions,
        inverse_frequencies(config.rope, config.head_dim),
        attention_scaling(config.rope),
        "model.rotary_emb",
    )  # cos, sin: [N, D/2]
    x = r.embed(r.inputs.token_ids, weights.embed_tokens, "model.embed_tokens")  # [N, C]
    for i, layer in enumerate(weights.layers):
        with r.stage(f"model.layers.{i}"):
            x = attention_block(r, config, layer, cache.layer(i), rotary, x)  # [N, C]
            x = mlp_block(r, config, layer, x)  # [N, C]
    x = r.gather_rows(x, r.inputs.logit_rows, "model.logit_rows")  # [L, C]
    x = r.rms_norm(x, weights.norm, config.rms_norm_eps, "model.norm")  # [L, C]
    return r.outputs(r.linear(x, weights.lm_head, "lm_head"))  # [L, V]


def attention_block(
    r: "Recorder",
    config: "DecoderConfig",
    layer: "LayerWeights",
    cache: "Value",
    rotary: tuple["Value", "Value"],
    x: "Value",
) -> "Value":
    """x + o_proj(attention(rope(q), rope(k), v)), each of q, k, v a projection of norm(x)."""
    D = config.head_dim
    h = r.rms_norm(x, layer.input_norm, config.rms_norm_eps, "input_layernorm")  # [N, C]
    q, k, v = r.linears(
        h,
        [layer.q_proj, layer.k_proj, layer.v_proj],
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    )  # [N, H*D], [N, K*D], [N, K*D]
    q, k = r.rope(q, k, rotary, D, ["self_attn.q_rope", "self_attn.k_rope"])
    r.kv_write(cache, k, v, r.inputs.slots, D)
    a = r.attention(q, cache, D, config.attention_scale, "self_attn.attn_output")  # [N, H*D]
    return r.linear(
        a, layer.o_proj, "self_attn.o_proj", residual=x, residual_name="self_attn.residual"
    )  # [N, C]


def mlp_block(
    r: "Recorder", config: "DecoderConfig", layer: "LayerWeights", x: "Value"
) -> "Value":
    """x + down_proj(silu(gate_proj(h)) * up_proj(h)), h = norm(x).

    SwiGLU: Shazeer 2020, arXiv:2002.05202.
    """
    h = r.rms_norm(x, layer.post_norm, config.rms_norm_eps, "post_attention_layernorm")  # [N, C]
    gate, up = r.linears(
        h, [layer.gate_proj, layer.up_proj], ["mlp.gate_proj", "mlp.up_proj"]
    )  # [N, F], [N, F]
    h = r.swiglu(gate, up, "mlp.swiglu")  # [N, F]
    return r.linear(h, layer.down_proj, "mlp.down_proj", residual=x, residual_name="")  # [N, C]
