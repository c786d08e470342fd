"""What Kestrel understood of a config.json: frozen dataclasses, validated on construction.

Field names in messages are those of Hugging Face's config.json. Messages raised here name no file:
``Family.parse``, which knows the file, puts it in front.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from kestrel.errors import ConfigError, RequestError, UnsupportedModelError

__all__ = ["HF_NAMES", "INT32_MAX", "MAX_HEAD_DIM", "MAX_LAYERS", "ROPE_TYPES"]
__all__ += ["DecoderConfig", "Limits", "RopeConfig"]
__all__ += ["check_integer", "check_number", "default_attention_scale", "shorten"]

#: Sizes travel to the kernels as int32.
INT32_MAX = 2**31 - 1
_FLOAT32_MAX = float(np.finfo(np.float32).max)
#: Far above any model; a broken config must not become hours of work or a full memory.
MAX_LAYERS = 10_000
MAX_HEAD_DIM = 65_536

ROPE_TYPES = ("default", "linear", "llama3")

#: DecoderConfig field to its name in config.json, where the two differ.
HF_NAMES = MappingProxyType(
    {
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
    }
)


def shorten(value: object, width: int = 60) -> str:
    """``repr`` of a value, cut so that a message stays readable."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def check_integer(key: str, value: object, minimum: int = 1, maximum: int = INT32_MAX) -> int:
    """``value`` when it is an int in [minimum, maximum]. Raises ConfigError naming ``key``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key}: expected an integer, found {shorten(value)}", key)
    if not minimum <= value <= maximum:
        expected = f"an integer from {minimum:,} to {maximum:,}"
        raise ConfigError(f"{key}: expected {expected}, found {shorten(value)}", key)
    return value


def check_number(key: str, value: object, above: float = 0.0, minimum: float = 0.0) -> float:
    """``value`` as a float, when it is > ``above`` and >= ``minimum`` once rounded to float32.

    Integers are accepted; bools, strings, NaN and infinities are not. Raises ConfigError.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key}: expected a number, found {shorten(value)}", key)
    # Compared before it is converted: an int above 1e308 has no float. NaN fails every comparison.
    if not (abs(value) <= _FLOAT32_MAX and np.float32(value) > above and value >= minimum):
        bound = f"of at least {minimum:g}" if minimum > above else f"above {above:g}"
        expected = f"a finite number {bound}, within float32"
        raise ConfigError(f"{key}: expected {expected}, found {shorten(value)}", key)
    return float(value)


def default_attention_scale(head_dim: int) -> float:
    """``head_dim ** -0.5`` rounded to float32, as torch rounds a Python factor of a float32 tensor.

    Through sqrt, which IEEE 754 rounds correctly on every platform; pow is up to the libm.
    """
    return float(np.float32(1.0 / math.sqrt(head_dim)))


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding, under the names of transformers' ``rope_parameters``.

    Attributes:
        type: ``default``, ``linear`` or ``llama3`` (``rope_type``).
        theta: base of the wavelengths (``rope_theta``).
        factor: what stretches the context; linear and llama3.
        low_freq_factor, high_freq_factor: llama3 only.
        original_max_position_embeddings: context of the pretraining; llama3 only.

    Raises ConfigError (UnsupportedModelError for another type) naming the field.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None

    def __post_init__(self) -> None:
        if self.type not in ROPE_TYPES:
            raise UnsupportedModelError(
                f"rope_type: expected one of {', '.join(ROPE_TYPES)}, found {shorten(self.type)}: "
                "this scaling is not supported",
                "rope_type",
            )
        check_number("rope_theta", self.theta)
        needed = {
            "default": (),
            "linear": ("factor",),
            "llama3": tuple(_ROPE_OPTIONS),
        }[self.type]
        for key in _ROPE_OPTIONS:
            value = getattr(self, key)
            if key in needed and value is None:
                raise ConfigError(f"{key}: rope_type {self.type!r} needs it, but it is absent", key)
            if key not in needed and value is not None:
                raise ConfigError(
                    f"{key}: expected none for rope_type {self.type!r}, found {shorten(value)}: "
                    "correct rope_type or remove it",
                    key,
                )
        if self.factor is not None:
            check_number("factor", self.factor, minimum=1.0)
        if self.type == "llama3":
            self._check_llama3()

    def _check_llama3(self) -> None:
        low = check_number("low_freq_factor", self.low_freq_factor)
        high = check_number("high_freq_factor", self.high_freq_factor)
        if not np.float32(high - low) > 0:
            raise ConfigError(
                f"high_freq_factor: expected above low_freq_factor ({low:g}), found {high:g}",
                "high_freq_factor",
            )
        key = "original_max_position_embeddings"
        check_integer(key, self.original_max_position_embeddings)


_ROPE_OPTIONS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


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
        rope: rotary position embedding.
        max_position_embeddings: the context limit in tokens.
        tie_word_embeddings: the embedding is the head too.
        attention_bias: q, k, v and o projections have biases.
        mlp_bias: gate, up and down projections have biases.
        attention_scale: what q @ k is multiplied by, a float32 value.
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
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads"):
            check_integer(HF_NAMES.get(name, name), getattr(self, name))
        check_integer("num_hidden_layers", self.num_layers, maximum=MAX_LAYERS)
        check_integer("head_dim", self.head_dim, maximum=MAX_HEAD_DIM)
        check_integer("max_position_embeddings", self.max_position_embeddings)
        check_number("rms_norm_eps", self.rms_norm_eps)
        check_number("attention_scale", self.attention_scale)
        if self.head_dim % 2:
            raise ConfigError(
                f"head_dim: expected an even number (RoPE rotates pairs), found {self.head_dim}",
                "head_dim",
            )
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
        object.__setattr__(self, "sources", dict(self.sources))

    def described(self) -> Iterator[tuple[str, object, str]]:
        """(Hugging Face name, value, source) of each field, RoPE's in their place."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "rope":
                yield from self._described_rope()
            elif name not in ("sources", "notes"):
                hf_name = HF_NAMES.get(name, name)
                yield hf_name, value, self.sources.get(hf_name, "given")

    def _described_rope(self) -> Iterator[tuple[str, object, str]]:
        values = {"rope_type": self.rope.type, "rope_theta": self.rope.theta}
        values |= {key: getattr(self.rope, key) for key in _ROPE_OPTIONS}
        for key, value in values.items():
            if value is not None:
                yield key, value, self.sources.get(key, "given")


@dataclass(frozen=True)
class Limits:
    """How much one model may take at a time; the sizes of everything allocated at load.

    Attributes:
        max_tokens: tokens in one step, N; longer prompts are prefilled in chunks of it.
        max_seqs: sequences in one step, S; at most max_tokens.
        max_context: tokens in one sequence; None: max_position_embeddings.
        cache_bytes: memory for the KV cache; None: chosen at load and printed.
        max_logit_rows: rows of logits in one step, L; None: chosen at load.

    Raises RequestError naming the option.
    """

    max_tokens: int = 512
    max_seqs: int = 16
    max_context: int | None = None
    cache_bytes: int | None = None
    max_logit_rows: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is None and name not in ("max_tokens", "max_seqs"):
                continue
            maximum = 2**63 - 1 if name == "cache_bytes" else INT32_MAX
            try:
                check_integer(name, value, maximum=maximum)
            except ConfigError as error:
                raise RequestError(f"limits: {error}") from None
        if self.max_seqs > self.max_tokens:
            raise RequestError(
                f"limits: max_seqs: expected at most max_tokens ({self.max_tokens}), since every "
                f"running sequence computes a token in each step, found {self.max_seqs}"
            )
        if self.max_logit_rows is not None and self.max_logit_rows > self.max_tokens:
            raise RequestError(
                f"limits: max_logit_rows: expected at most max_tokens ({self.max_tokens}), since "
                f"each row belongs to a token of the step, found {self.max_logit_rows}"
            )
