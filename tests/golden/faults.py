"""Faults that real runtimes shipped, or that a new family invites.

Each is made in tests/golden/numpy_decoder.py or numpy_rotary.py; test_bounds.py shows that the
bounds catch it. The numbers S.. name the public reports in tests' docstrings.
"""

from __future__ import annotations

__all__ = ["FAULTS"]

_LAYER = "model.layers.0"
_ATTENTION = f"{_LAYER}.self_attn"

#: Fault -> (recipe that shows it, first stage that must be beyond its bound).
FAULTS: dict[str, tuple[str, str]] = {
    # Rotation.
    "rope rotates pairs": ("gqa-6-3", f"{_ATTENTION}.q_rope"),
    "rope angles in bfloat16": ("gqa-6-3", "model.rotary_emb.cos"),
    "rope positions from one": ("gqa-6-3", "model.rotary_emb.cos"),
    "rope theta 10000 whatever the config": ("rope-theta-new", "model.rotary_emb.cos"),
    "rope scaling ignored": ("rope-linear-old", "model.rotary_emb.cos"),
    "rope scaling without its blend": ("rope-llama3-old", "model.rotary_emb.cos"),
    "yarn dimensions not whole": ("rope-yarn-integers", "model.rotary_emb.cos"),
    "cos and sin not stretched": ("rope-yarn-integers", "model.rotary_emb.cos"),
    "frequencies of every token's own length": ("rope-dynamic-long-bf16", "model.rotary_emb.cos"),
    "frequencies of the last length for all": ("rope-dynamic-decode", "model.rotary_emb.cos"),
    "short factors whatever the length": ("phi3-longrope-long", "model.rotary_emb.cos"),
    "cache kept past the original length": ("phi3-longrope-decode-f16", "model.rotary_emb.cos"),
    "long factors one token late": ("phi3-longrope-border-bf16", "model.rotary_emb.cos"),
    "last columns rotated": ("phi3-partial", f"{_ATTENTION}.q_rope"),
    "one base for all layers": ("gemma3-two-bases", "model.rotary_emb.sliding_attention.cos"),
    "layers without rope rotated": (
        "smollm3-every-second",
        "model.layers.1.self_attn.attn_output",
    ),
    # Attention.
    "kv heads tiled": ("gqa-6-3", f"{_ATTENTION}.attn_output"),
    "mask one position late": ("gqa-6-3", f"{_ATTENTION}.attn_output"),
    "attention misses the last block": ("gqa-6-3", f"{_ATTENTION}.attn_output"),
    "second layer only: values from keys": ("gqa-6-3", "model.layers.1.self_attn.attn_output"),
    "cache in float16": ("gqa-6-3", f"{_ATTENTION}.attn_output"),
    "score scale from hidden / heads": ("head-dim-16-of-8", f"{_ATTENTION}.attn_output"),
    "score scale from head_dim": ("gemma2-caps", f"{_ATTENTION}.attn_output"),
    "window ignored": ("mistral-window-17-18-tokens", f"{_ATTENTION}.attn_output"),
    "window one position wider": ("mistral-window-5-f16", f"{_ATTENTION}.attn_output"),
    "window one position narrower": ("mistral-window-17-17-tokens", f"{_ATTENTION}.attn_output"),
    "window of whole blocks": ("mistral-window-16", f"{_ATTENTION}.attn_output"),
    "window in the other layers": ("gemma2-alternating", f"{_ATTENTION}.attn_output"),
    "window in all layers": ("qwen2-window-from-layer-1-bf16", f"{_ATTENTION}.attn_output"),
    "scores not capped": ("gemma2-caps", f"{_ATTENTION}.attn_output"),
    # Norms.
    "eps outside the root": ("gqa-6-3", f"{_LAYER}.input_layernorm"),
    "eps 1e-5 whatever the family": ("mha-4-defaults", f"{_LAYER}.input_layernorm"),
    "norm rounded to bfloat16": ("large-norms-bf16", f"{_LAYER}.input_layernorm"),
    "norm weight plus one": ("small-norms", f"{_LAYER}.input_layernorm"),
    "norm weight alone": ("gemma-gelu", f"{_LAYER}.input_layernorm"),
    "queries and keys not normed": ("qwen3-one-kv-head", f"{_ATTENTION}.q_norm"),
    "queries and keys normed over all heads": ("qwen3-window-bf16", f"{_ATTENTION}.q_norm"),
    "queries and keys normed by head": ("olmo2-gqa-bf16", f"{_ATTENTION}.q_norm"),
    "norm after the sum": ("gemma2-no-caps-f16", f"{_ATTENTION}.residual"),
    "norm before the block": ("olmo2-mha", f"{_ATTENTION}.q_proj"),
    # Linears, multipliers, sums.
    "bias missing": ("attention-bias-bf16", f"{_ATTENTION}.q_proj"),
    "implied bias missing": ("qwen2-window-unused", f"{_ATTENTION}.q_proj"),
    "o_proj bias missing": ("attention-bias-bf16", f"{_ATTENTION}.o_proj"),
    "down_proj bias missing": ("all-biases-f16", f"{_LAYER}.mlp.down_proj"),
    "gate and up swapped": ("phi3-partial", f"{_LAYER}.mlp.gate_proj"),
    "embeddings not scaled": ("gemma-gelu", "model.embed_tokens"),
    "embeddings scaled by a bfloat16": ("gemma-gelu", "model.embed_tokens"),
    "sums not scaled": ("granite-multipliers", f"{_ATTENTION}.residual"),
    "residual before the norm's": ("gqa-6-3", _LAYER),
    "activations in bfloat16": ("gqa-6-3", f"{_LAYER}.mlp.down_proj"),
    "sum in float32 of 2 ** 14 too many": ("gqa-6-3", f"{_ATTENTION}.o_proj"),
    # The gate.
    "gelu for silu": ("gqa-6-3", f"{_LAYER}.mlp.swiglu"),
    "silu for gelu": ("gemma2-unsaid-bf16", f"{_LAYER}.mlp.swiglu"),
    "gelu by the error function": ("gemma-wide-gates-f16", f"{_LAYER}.mlp.swiglu"),
    # The head.
    "head tied although untied": ("gqa-6-3", "lm_head"),
    "logits multiplied": ("granite-multipliers", "logits"),
    "logits not capped": ("gemma2-caps", "logits"),
}
