"""Read config.json strictly: each key is taken by its family, known to be harmless, or refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import (
    INT32_MAX,
    MAX_HEAD_DIM,
    check_integer,
    check_number,
    shorten,
)
from kestrel.models.generic_keys import (
    GENERATION_KEYS,
    NEUTRAL_VALUES,
    QUANTIZATION_KEYS,
    WITHOUT_EFFECT,
)

__all__ = ["Fallback", "Fields", "default", "implied"]

T = TypeVar("T")


class Fallback(NamedTuple):
    """What stands in for an absent key, and the words that ``inspect`` shows for its origin."""

    value: object
    source: str


def default(value: object) -> Fallback:
    """The value that transformers takes when the key is absent."""
    return Fallback(value, "default (of transformers)")


def implied(value: object, by: str) -> Fallback:
    """A value that follows from other fields."""
    return Fallback(value, f"implied by {by}")


class Fields:
    """The fields of one config.json, read one by one.

    ``null`` means absent, as everywhere in Hugging Face's files. Every reader raises ConfigError
    naming the key, for an absent key without ``fallback`` too.

    Attributes:
        sources: key to where its value came from, for all keys read so far.
        notes: sentences for the user.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._values = {key: value for key, value in config.items() if value is not None}
        self._taken: set[str] = set()
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def take(self, key: str) -> object | None:
        """The raw value, None when absent; the key counts as understood from now on."""
        self._taken.add(key)
        return self._values.get(key)

    def record(self, key: str, fallback: Fallback) -> object:
        """Note where a field came from that config.json does not hold; returns its value."""
        self.sources[key] = fallback.source
        return fallback.value

    def integer(
        self, key: str, fallback: Fallback | None = None, maximum: int = INT32_MAX
    ) -> int:
        """A positive int."""
        return check_integer(key, self._read(key, fallback), maximum=maximum)

    def number(self, key: str, fallback: Fallback | None = None) -> float:
        """A positive finite number."""
        return check_number(key, self._read(key, fallback))

    def flag(self, key: str, fallback: Fallback | None = None) -> bool:
        """A bool."""
        value = self._read(key, fallback)
        if not isinstance(value, bool):
            raise ConfigError(f"{key}: expected true or false, found {shorten(value)}", key)
        return value

    def choice(self, key: str, allowed: Sequence[str], fallback: Fallback | None = None) -> str:
        """One of the strings that are implemented; others raise UnsupportedModelError."""
        value = self._read(key, fallback)
        if not isinstance(value, str) or value not in allowed:
            raise UnsupportedModelError(
                f"{key}: expected {' or '.join(allowed)}, found {shorten(value)}: not supported",
                key,
            )
        return value

    def head_dim(self, hidden_size: int, num_heads: int) -> int:
        """``head_dim``, or hidden_size / num_attention_heads when the key is absent."""
        if "head_dim" not in self._values and hidden_size % num_heads:
            raise ConfigError(
                f"hidden_size: expected a multiple of num_attention_heads ({num_heads}), since "
                f"head_dim is absent, found {hidden_size}",
                "hidden_size",
            )
        share = implied(hidden_size // num_heads, "hidden_size / num_attention_heads")
        return self.integer("head_dim", share, maximum=MAX_HEAD_DIM)

    def context_limit(self, fallback: Fallback) -> int:
        """``max_position_embeddings``; notes another ``max_sequence_length``.

        The first Llama conversions carry both keys; transformers reads the former alone.
        """
        limit = self.integer("max_position_embeddings", fallback)
        other = self.take("max_sequence_length")
        if other is not None and other != limit:
            self.notes.append(
                f"max_sequence_length is {shorten(other)}, but max_position_embeddings "
                f"({limit}, {self.sources['max_position_embeddings']}) decides, as in transformers"
            )
        return limit

    def full_attention(self, num_layers: int) -> None:
        """Accept ``layer_types`` when it only says what is true of these families."""
        kinds = self.take("layer_types")
        if kinds is None:
            return
        if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
            raise UnsupportedModelError(
                f"layer_types: expected full_attention for each layer, found {shorten(kinds)}: "
                "other kinds of layers are not supported",
                "layer_types",
            )
        if len(kinds) != num_layers:
            raise ConfigError(
                f"layer_types: expected {num_layers} entries (num_hidden_layers), "
                f"found {len(kinds)}",
                "layer_types",
            )

    def finish(self) -> None:
        """Judge the keys that the family did not take.

        Raises UnsupportedModelError naming the first setting that would change the model, or all
        that are unknown.
        """
        rest = {key: self._values[key] for key in self._values if key not in self._taken}
        for key in QUANTIZATION_KEYS:
            if key in rest:
                self._refuse_quantization(key, rest[key])
        for key, (neutral, feature) in NEUTRAL_VALUES.items():
            value = rest.get(key)
            if value is not None and not any(_same(value, other) for other in neutral):
                expected = " or ".join(["null", *(shorten(other) for other in neutral)])
                raise UnsupportedModelError(
                    f"{key}: expected {expected}, found {shorten(value)}: it asks for {feature}, "
                    "which is not supported",
                    key,
                )
        self._check_auto_map(rest.pop("auto_map", None))
        self._refuse_unknown(rest)
        dropped = sorted(GENERATION_KEYS.intersection(rest))
        if dropped:
            self.notes.append(
                f"generation settings without effect here: {', '.join(dropped)}: "
                "transformers and Kestrel read them from generation_config.json"
            )

    def _read(self, key: str, fallback: Fallback | None) -> object:
        value = self.take(key)
        if value is not None:
            self.sources[key] = "config.json"
            return value
        if fallback is None:
            raise ConfigError(
                f"{key}: it is absent or null, and no default fits: the file is cut, or belongs "
                "to another kind of model",
                key,
            )
        return self.record(key, fallback)

    def _refuse_quantization(self, key: str, value: object) -> None:
        method = value.get("quant_method") if isinstance(value, dict) else None
        kind = f"quant_method {shorten(method)}" if method is not None else shorten(value)
        raise UnsupportedModelError(
            f"{key}: the weights are quantized ({kind}), which is not supported: use the model's "
            "float32, float16 or bfloat16 checkpoint",
            key,
        )

    def _check_auto_map(self, value: object) -> None:
        if value is None or isinstance(value, dict) and set(value) <= {"AutoTokenizer"}:
            return
        raise UnsupportedModelError(
            f"auto_map: the model brings its own Python code ({shorten(value)}), which Kestrel "
            "never runs: remove the key if the model computes what its model_type says",
            "auto_map",
        )

    def _refuse_unknown(self, rest: Mapping[str, object]) -> None:
        known = {*WITHOUT_EFFECT, *GENERATION_KEYS, *NEUTRAL_VALUES}
        unknown = [key for key in rest if key not in known and not key.startswith("_")]
        if not unknown:
            return
        listed = []
        for key in unknown[:5]:
            near = difflib.get_close_matches(key, [*self._taken, *known], 1, 0.85)
            hint = f" (meant: {near[0]}?)" if near else ""
            listed.append(f"{shorten(key)[1:-1]} = {shorten(rest[key])}{hint}")
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UnsupportedModelError(
            f"unknown settings: {'; '.join(listed)}{more}: any of them may change the model, so "
            "none is ignored; a key that is a mere note passes with an underscore in front",
            unknown[0],
        )


def _same(value: object, other: object) -> bool:
    # 0 == False and 1 == True in Python, but not in a config; 1 == 1.0 in both.
    return isinstance(value, bool) == isinstance(other, bool) and value == other
