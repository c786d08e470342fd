"""The forward pass of a Llama-family decoder.

Read it as the equations of the model: each call records one operation, and the recorded program
is what every backend runs at every step. Families differ by named fields of the config and by the
norms that they have. Axes: N tokens in the step, L rows whose logits are wanted, H query heads,
K key/value heads, D head dim, C model dim, F feed-forward dim, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel.models.rope import frequencies

if TYPE_CHECKING:
    from kestrel.cache.paged_cache import PagedCache
    from kestrel.models.config import DecoderConfig, LayerKind
    from kestrel.models.weights import DecoderWeights, LayerWeights, Linear, Norm
    from kestrel.program.program import Program
    from kestrel.program.recorder import Recorder
    from kestrel.program.values import Value


def decoder(
    r: "Recorder", config: "DecoderConfig", weights: "DecoderWeights", cache: "PagedCache"
) -> "Program":
    """Token ids to logits (Touvron and others 2023, arXiv:2302.13971)."""
    rotary = {
        rope: r.rotary_embedding(frequencies(rope, config.head_dim, config.context_limit), name)
        for name, rope in config.ropes.items()
    }  # cos, sin: [N, rotary_dim / 2]
    x = r.embed(
        r.inputs.token_ids, weights.embed_tokens, config.embedding_multiplier, "model.embed_tokens"
    )  # [N, C]
    for i, (kind, layer) in enumerate(zip(config.layers, weights.layers)):
        # No token reads another behind the last attention: rows without logits end there.
        rows = r.inputs.logit_rows if i == config.num_layers - 1 and not r.is_traced else None
        with r.stage(f"model.layers.{i}"):
            cos_sin = rotary.get(kind.rope)
            x = attention_block(r, config, kind, layer, cache.layer(i), cos_sin, rows, x)
            x = mlp_block(r, config, layer, x)  # [N, C], or [L, C] where rows are chosen
    if r.is_traced:
        x = r.gather_rows(x, r.inputs.logit_rows, "model.logit_rows")  # [L, C]
    x = norm(r, config, weights.norm, x)  # [L, C]
    logits = r.linear(x, weights.lm_head, "lm_head")  # [L, V]
    if config.logits_scaling != 1 or config.final_logit_softcapping:
        scale, cap = 1 / config.logits_scaling, config.final_logit_softcapping
        logits = r.soft_cap(logits, scale, cap, "logits")  # [L, V]
    return r.outputs(logits)


def attention_block(
    r: "Recorder",
    config: "DecoderConfig",
    kind: "LayerKind",
    layer: "LayerWeights",
    cache: "Value",
    cos_sin: "tuple[Value, Value] | None",
    rows: "Value | None",
    x: "Value",
) -> "Value":
    """x + o_proj(attention(rope(q), rope(k), v)), each of q, k, v a projection of norm(x).

    ``rows`` [L]: those that go on behind the attention; None: all.
    """
    D = config.head_dim
    h = norm(r, config, layer.input_norm, x)  # [N, C]
    q, k, v = r.linears(
        h,
        [layer.q_proj, layer.k_proj, layer.v_proj],
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    )  # [N, H*D], [N, K*D], [N, K*D]
    q, k = norm(r, config, layer.q_norm, q), norm(r, config, layer.k_norm, k)
    if cos_sin is not None:
        q, k = r.rope(q, k, cos_sin, D, ["self_attn.q_rope", "self_attn.k_rope"])
    r.kv_write(cache, k, v, r.inputs.slots, D)
    a = r.attention(
        q, cache, D, config.attention_scale, kind.window, config.attn_logit_softcapping,
        "self_attn.attn_output",
    )  # [N, H*D]  # fmt: skip
    if rows is not None:
        x = r.gather_rows(x, rows, "logit_rows")  # [L, C]
        a = r.gather_rows(a, rows, "self_attn.logit_rows")  # [L, H*D]
    return add_output(
        r, config, x, a, layer.o_proj, "self_attn.o_proj", layer.attention_output_norm,
        "self_attn.residual",
    )  # fmt: skip


def mlp_block(
    r: "Recorder", config: "DecoderConfig", layer: "LayerWeights", x: "Value"
) -> "Value":
    """x + down_proj(act(gate_proj(h)) * up_proj(h)), h = norm(x).

    SwiGLU, GeGLU: Shazeer 2020, arXiv:2002.05202.
    """
    h = norm(r, config, layer.mlp_norm, x)  # [N, C]
    gate, up = r.linears(
        h, [layer.gate_proj, layer.up_proj], ["mlp.gate_proj", "mlp.up_proj"]
    )  # [N, F], [N, F]
    h = r.swiglu(gate, up, config.hidden_act, "mlp.swiglu")  # [N, F]
    return add_output(r, config, x, h, layer.down_proj, "mlp.down_proj", layer.mlp_output_norm, "")


def norm(r: "Recorder", config: "DecoderConfig", weights: "Norm | None", x: "Value") -> "Value":
    """RMS norm, over each run of as many columns as there are weights; x where there is none."""
    if weights is None:
        return x
    return r.rms_norm(x, weights.weight, config.rms_norm_eps, config.norm_offset, weights.name)


def add_output(
    r: "Recorder",
    config: "DecoderConfig",
    x: "Value",
    y: "Value",
    projection: "Linear",
    name: str,
    output_norm: "Norm | None",
    sum_name: str,
) -> "Value":
    """x + multiplier * norm(y Wᵀ): a block's output joins the residual stream. [N, C]"""
    scale = config.residual_multiplier
    if output_norm is None:
        return r.linear(y, projection, name, residual=x, scale=scale, residual_name=sum_name)
    y = norm(r, config, output_norm, r.linear(y, projection, name))
    return r.add(x, y, scale, sum_name)
