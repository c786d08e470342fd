"""Read config.json strictly: each key is taken by its family, known to be harmless, or refused."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import INT32_MAX, check_integer, check_number, shorten
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

    ``null`` means absent, except where a class of transformers gives it a meaning of its own
    (``integer_or_none``, ``number_or_none``). Every reader raises ConfigError naming the key, for
    an absent key without ``fallback`` too.

    Attributes:
        sources: key to where its value came from, for all keys read so far.
        notes: sentences for the user.
    """

    def __init__(self, config: Mapping[str, object]) -> None:
        self._values = {key: value for key, value in config.items() if value is not None}
        self._nulls = config.keys() - self._values.keys()
        self._taken: set[str] = set()
        self._code: frozenset[str] = frozenset()
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []

    def take(self, key: str) -> object | None:
        """The raw value, None when absent; the key counts as understood from now on."""
        self._taken.add(key)
        return self._values.get(key)

    def is_null(self, key: str) -> bool:
        """Whether the file holds the key, with null as its value."""
        return key in self._nulls

    def record(self, key: str, fallback: Fallback) -> object:
        """Note where a field came from that config.json does not hold; returns its value."""
        self.sources[key] = fallback.source
        return fallback.value

    def fixed(self, key: str, value: T) -> T:
        """Note a field that is the same in every model of the family; returns its value."""
        self.sources[key] = "implied by model_type"
        return value

    def integer(
        self,
        key: str,
        fallback: Fallback | None = None,
        minimum: int = 1,
        maximum: int = INT32_MAX,
    ) -> int:
        """An int in [minimum, maximum]."""
        return check_integer(key, self._read(key, fallback), minimum, maximum)

    def integer_or_none(self, key: str, fallback: Fallback) -> int | None:
        """A positive int; None where the file says null, or ``fallback`` None."""
        return self._or_none(self.integer, key, fallback)

    def number(self, key: str, fallback: Fallback | None = None) -> float:
        """A positive finite number."""
        return check_number(key, self._read(key, fallback))

    def number_or_none(self, key: str, fallback: Fallback) -> float | None:
        """A positive finite number; None where the file says null, or ``fallback`` None."""
        return self._or_none(self.number, key, fallback)

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

    def neutral(self, key: str, allowed: Sequence[object], feature: str) -> None:
        """Accept a key that is null or one of ``allowed``, since these change nothing.

        Raises UnsupportedModelError saying that another value asks for ``feature``.
        """
        value = self.take(key)
        if value is None or any(_same(value, other) for other in allowed):
            return
        expected = " or ".join(["null", *(shorten(other) for other in allowed)])
        raise UnsupportedModelError(
            f"{key}: expected {expected}, found {shorten(value)}: it asks for {feature}, which is "
            "not supported for this model_type",
            key,
        )

    def accept_code(self, names: Iterable[str]) -> None:
        """Accept an ``auto_map`` of these alone, ``module.Class`` each.

        For classes that transformers has taken over under the same names: without
        ``trust_remote_code`` it too computes by its own, whatever lies in the folder.
        """
        self._code = frozenset(names)

    def finish(self) -> None:
        """Judge the keys that the family did not take.

        Raises UnsupportedModelError naming the first setting that would change the model, or all
        that are unknown.
        """
        rest = {key: self._values[key] for key in self._values if key not in self._taken}
        for key in QUANTIZATION_KEYS:
            if key in rest:
                self._refuse_quantization(key, rest[key])
        for key, (allowed, feature) in NEUTRAL_VALUES.items():
            if key in rest:
                self.neutral(key, allowed, feature)
        self._check_auto_map(rest.pop("auto_map", None))
        self._refuse_unknown(rest)

    def _or_none(self, read: Callable[..., T], key: str, fallback: Fallback) -> T | None:
        null = self.is_null(key)
        if not null and (key in self._values or fallback.value is not None):
            return read(key, fallback)
        self.take(key)
        return self.record(key, Fallback(None, "config.json" if null else fallback.source))

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
        if isinstance(value, dict):
            value = {key: value[key] for key in value if key != "AutoTokenizer"}
        if not value and isinstance(value, (dict, type(None))):
            return
        names = value.values() if isinstance(value, dict) else [value]
        for name in names:
            # "owner/model--module.Class" names the folder that has the file.
            if not isinstance(name, str) or name.split("--")[-1] not in self._code:
                raise UnsupportedModelError(
                    f"auto_map: the model brings its own Python code ({shorten(value)}), which "
                    "Kestrel never runs: remove the key if the model computes what its model_type "
                    "says",
                    "auto_map",
                )
        self.notes.append(
            f"auto_map names {', '.join(dict.fromkeys(names))}: these files are not run; Kestrel "
            "computes as transformers' own classes of these names"
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
