"""What tells one model's stages from another's, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kestrel.models.config import DecoderConfig
    from kestrel.models.rope_config import RopeConfig
    from kestrel.models.weights import DecoderWeights, Norm

__all__ = ["Geometry", "LayerGeometry"]

#: Stage of the rotary tables where all layers share them.
ROTARY = "model.rotary_emb"


@dataclass(frozen=True)
class LayerGeometry:
    """The attention of one layer.

    Attributes:
        window: the token at p sees the positions j with p - window < j <= p; None: all j <= p.
        rope: stage of the rotary tables (its ``.cos`` and ``.sin``) by which queries and keys are
            turned; None: they are not.
    """

    window: int | None = None
    rope: str | None = ROTARY


@dataclass(frozen=True)
class Geometry:
    """The numbers and names of a model that the definitions need.

    Attributes:
        num_attention_heads, num_key_value_heads, head_dim, rms_norm_eps, hidden_act,
            embedding_multiplier, residual_multiplier, logits_scaling, attn_logit_softcapping,
            final_logit_softcapping: as in config.json.
        layers: attention of each layer.
        ropes: stage of rotary tables -> ``rope_parameters`` in the spelling of transformers 5, and
            ``rotary_dim`` (columns of a head that are rotated) and ``max_position_embeddings``.
        attention_scale: what scores are multiplied by; None: ``head_dim ** -0.5``.
        norm_offset: added to the weight of every norm.
        qk_norm: norms of queries and keys before they are turned: "head", "projection" or None.
        attention_norm, attention_output_norm, mlp_norm, mlp_output_norm: module names of the norms
            before and after each block of a layer, None where there is none.
    """

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    layers: tuple[LayerGeometry, ...]
    ropes: Mapping[str, Mapping[str, object]]
    attention_scale: float | None = None
    hidden_act: str = "silu"
    norm_offset: float = 0.0
    qk_norm: str | None = None
    attention_norm: str | None = "input_layernorm"
    attention_output_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    mlp_output_norm: str | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    @property
    def has_logits(self) -> bool:
        """Whether something follows ``lm_head``: the stage ``logits``."""
        return self.logits_scaling != 1 or self.final_logit_softcapping is not None

    @classmethod
    def of(cls, config: "DecoderConfig", weights: "DecoderWeights") -> "Geometry":
        """The geometry of a model that Kestrel has loaded."""
        stage_of = {rope: stage for stage, rope in config.ropes.items()}
        first = weights.layers[0]
        return cls(
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            layers=tuple(LayerGeometry(k.window, stage_of.get(k.rope)) for k in config.layers),
            ropes={stage: _parameters(rope, config) for stage, rope in config.ropes.items()},
            attention_scale=config.attention_scale,
            hidden_act=config.hidden_act,
            norm_offset=config.norm_offset,
            qk_norm=config.qk_norm,
            attention_norm=_name(first.input_norm),
            attention_output_norm=_name(first.attention_output_norm),
            mlp_norm=_name(first.mlp_norm),
            mlp_output_norm=_name(first.mlp_output_norm),
            embedding_multiplier=config.embedding_multiplier,
            residual_multiplier=config.residual_multiplier,
            logits_scaling=config.logits_scaling,
            attn_logit_softcapping=config.attn_logit_softcapping,
            final_logit_softcapping=config.final_logit_softcapping,
        )


def _name(norm: "Norm | None") -> str | None:
    return None if norm is None else norm.name


def _parameters(rope: "RopeConfig", config: "DecoderConfig") -> Mapping[str, object]:
    return MappingProxyType(
        {
            **dict(rope.settings()),
            "rotary_dim": rope.rotated(config.head_dim),
            "max_position_embeddings": config.max_position_embeddings,
        }
    )
