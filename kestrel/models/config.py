"""What Kestrel understood of a config.json: frozen dataclasses, validated on construction.

Field names in messages are those of Hugging Face's config.json. Messages raised here name no file:
``Family.parse``, which knows the file, puts it in front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from kestrel.errors import ConfigError
from kestrel.models.checks import (
    INT32_MAX,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    check_integer,
    check_number,
)
from kestrel.models.rope_config import RopeConfig

__all__ = ["ACTIVATIONS", "HF_NAMES", "DecoderConfig", "LayerKind"]

#: DecoderConfig field to its name in config.json, where the two differ.
HF_NAMES = MappingProxyType(
    {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    }
)
#: Activations of the MLP: SiLU, and GELU by its tanh approximation.
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class LayerKind:
    """What one decoder layer's attention sees.

    Attributes:
        window: the token at position p sees the positions j with p - window < j <= p; None: all
            j <= p.
        rope: its rotary position embedding; None: queries and keys are not rotated (NoPE).
    """

    window: int | None
    rope: RopeConfig | None

    def __post_init__(self) -> None:
        if self.window is not None:
            check_integer("sliding_window", self.window)

    @property
    def attention(self) -> str:
        """The kind's name in ``layer_types``."""
        return "full_attention" if self.window is None else "sliding_attention"


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer, as far as the forward pass needs to know it.

    Attributes:
        model_type: the family, as in config.json.
        vocab_size: V; rows of the embedding, not tokens of the tokenizer.
        hidden_size: C.
        intermediate_size: F.
        num_layers, num_heads, num_kv_heads: ``num_hidden_layers``, H ``num_attention_heads``,
            K ``num_key_value_heads``.
        head_dim: D; q has H * D columns, whatever hidden_size is.
        rms_norm_eps: epsilon of every norm.
        rope: rotary position embedding, of all layers unless ``layers`` says otherwise.
        max_position_embeddings: the context that the model was made for, in tokens.
        tie_word_embeddings: the embedding is the head too.
        attention_bias: q, k and v projections have biases; o has one too unless
            ``attention_output_bias`` says otherwise.
        mlp_bias: gate, up and down projections have biases.
        attention_scale: what q @ k is multiplied by, a float32 value.
        attention_output_bias: the o projection has a bias; None: as ``attention_bias``.
        hidden_act: activation of the gate, one of ACTIVATIONS.
        norm_offset: added to the weight of every norm (Gemma: 1).
        qk_norm: RMS norm of q and k before RoPE: ``head`` over each head (weights [D]),
            ``projection`` over all heads at once (weights [H * D] and [K * D]); None: no norm.
        embedding_multiplier: what embeddings are multiplied by.
        residual_multiplier: what a block's output is multiplied by before it is added.
        logits_scaling: what logits are divided by.
        attn_logit_softcapping: scores s become cap * tanh(s / cap); None: they stay.
        final_logit_softcapping: the same for logits.
        rope_restarts: all tokens of a sequence are rotated by the length that it has now: when
            that changes their frequencies, keys and values are computed anew; False: each token by
            the length at the end of the call that appended it.
        layers: attention of each layer; empty: full attention with ``rope`` in all.
        sources: config.json name of each field to ``config.json``, ``default (...)`` or
            ``implied by ...``; RoPE fields by their own names (``rope_theta``, ``factor``, ...).
        notes: sentences about settings that a user may take for more than they are.

    Raises ConfigError naming the field, by its Hugging Face name.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    attention_scale: float
    attention_output_bias: bool | None = None
    hidden_act: str = "silu"
    norm_offset: float = 0.0
    qk_norm: str | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    rope_restarts: bool = False
    layers: tuple[LayerKind, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"):
            check_integer(HF_NAMES.get(name, name), getattr(self, name))
        check_integer("num_hidden_layers", self.num_layers, maximum=MAX_LAYERS)
        check_integer("head_dim", self.head_dim, maximum=MAX_HEAD_DIM)
        check_integer("max_position_embeddings", self.max_position_embeddings)
        for name in _POSITIVE:
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        self._check_heads()
        _check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        _check_choice("qk_norm", self.qk_norm, (None, "head", "projection"))
        kinds = self.layers or (LayerKind(None, self.rope),) * self.num_layers
        if len(kinds) != self.num_layers:
            raise ConfigError(
                f"layer_types: expected {self.num_layers} entries (num_hidden_layers), found "
                f"{len(kinds)}",
                "layer_types",
            )
        object.__setattr__(self, "layers", tuple(kinds))
        object.__setattr__(self, "sources", dict(self.sources))
        if self.attention_output_bias is None:
            object.__setattr__(self, "attention_output_bias", self.attention_bias)

    def _check_heads(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                "num_key_value_heads: expected a divisor of num_attention_heads "
                f"({self.num_heads}), found {self.num_kv_heads}",
                "num_key_value_heads",
            )
        if self.num_heads * self.head_dim > INT32_MAX:
            raise ConfigError(
                f"num_attention_heads: {self.num_heads} heads of head_dim {self.head_dim} are "
                f"{self.num_heads * self.head_dim:,} columns: expected at most {INT32_MAX:,}",
                "num_attention_heads",
            )
        for kind in (LayerKind(None, self.rope), *self.layers):
            if kind.rope is not None:
                kind.rope.rotated(self.head_dim)

    @property
    def attention_window(self) -> int | None:
        """The largest window when every layer has one: positions that left it are never read."""
        windows = [kind.window for kind in self.layers]
        return None if None in windows else max(windows)

    @property
    def ropes(self) -> dict[str, RopeConfig]:
        """Stage name to the rotary embedding computed there, each one once."""
        by_kind = {kind.attention: kind.rope for kind in self.layers if kind.rope is not None}
        if len(set(by_kind.values())) < 2:
            return {"model.rotary_emb": rope for rope in by_kind.values()}
        return {f"model.rotary_emb.{kind}": by_kind[kind] for kind in sorted(by_kind)}

    @property
    def context_limit(self) -> int:
        """Most tokens of a sequence: as far as the rotary embedding stretches."""
        stretched = [rope.stretched(self.max_position_embeddings) for rope in self.ropes.values()]
        return min(stretched, default=self.max_position_embeddings)

    @property
    def rope_length_range(self) -> tuple[int, int] | None:
        """(first, last) when frequencies follow the length of the sequence: lengths up to first
        are alike, and so are those from last on. None when no layer's do."""
        ranges = [rope.length_range(self.context_limit) for rope in self.ropes.values()]
        ranges = [each for each in ranges if each is not None]
        if not ranges:
            return None
        return min(first for first, _ in ranges), max(last for _, last in ranges)

    def described(self) -> Iterator[tuple[str, object, str]]:
        """(Hugging Face name, value, source) of each field, RoPE's in their place.

        What another family would have, and this model has not, is left out.
        """
        for name, spec in self.__dataclass_fields__.items():
            value = getattr(self, name)
            if name == "rope":
                for key, setting in self.rope.settings():
                    yield key, setting, self.sources.get(key, "given")
            elif name == "layers":
                yield from self._described_layers()
            elif name not in ("sources", "notes"):
                hf_name = HF_NAMES.get(name, name)
                usual = self.attention_bias if name == "attention_output_bias" else spec.default
                if value != usual or hf_name in self.sources:
                    yield hf_name, value, self.sources.get(hf_name, "given")

    def _described_layers(self) -> Iterator[tuple[str, object, str]]:
        values = {
            "layer_types": [kind.attention for kind in self.layers],
            "sliding_window": next((k.window for k in self.layers if k.window), None),
            "no_rope_layers": [int(kind.rope is not None) for kind in self.layers],
        }
        if values["sliding_window"] is None:
            del values["layer_types"]
            if "sliding_window" not in self.sources:  # one that is switched off is worth a line
                del values["sliding_window"]
        if all(values["no_rope_layers"]):
            del values["no_rope_layers"]
        for key, value in values.items():
            yield key, value, self.sources.get(key, "given")
        for kind in self.layers:
            if kind.rope not in (None, self.rope):
                for key, value in kind.rope.settings():
                    key = f"{kind.attention}.{key}"
                    yield key, value, self.sources.get(key, "given")
                return


_POSITIVE = (
    "rms_norm_eps",
    "attention_scale",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)


def _check_choice(key: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        expected = " or ".join(str(each) for each in allowed)
        raise ConfigError(f"{key}: expected {expected}, found {value!r:.60}", key)
