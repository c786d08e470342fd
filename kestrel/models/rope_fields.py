"""RoPE settings of config.json in all their spellings, brought into one RopeConfig.

transformers 5 writes one block ``rope_parameters``; before, ``rope_theta`` stood at the top level
and ``rope_scaling`` held the rest, with ``type`` later renamed ``rope_type``. Where two places give
one setting they must agree: a reader that picks one would run a model that nobody trained.
"""

from __future__ import annotations

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import check_integer, check_number, shorten
from kestrel.models.fields import Fallback, Fields, default
from kestrel.models.rope_config import ROPE_TYPES, RopeConfig

__all__ = ["parse_layer_ropes", "parse_rope"]

_NEW, _OLD, _TOP = "rope_parameters", "rope_scaling", "config.json"
_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor")
_LENGTH = "original_max_position_embeddings"


def parse_rope(fields: Fields, head_dim: int, theta: Fallback) -> RopeConfig:
    """RopeConfig of a config.json; ``theta`` stands in for an absent ``rope_theta``.

    Raises ConfigError for a wrong value or a contradiction, UnsupportedModelError for a scaling,
    a partial rotation or a key that is not implemented; each names the field.
    """
    blocks = {_NEW: _read_block(fields, _NEW), _OLD: _read_block(fields, _OLD)}
    top = {key: fields.take(key) for key in ("rope_theta", _LENGTH)}
    places = {**blocks, _TOP: {k: _convert(k, k, v) for k, v in top.items() if v is not None}}
    values = _merge(fields, places)
    _refuse_partial_rotation(fields, places, head_dim)
    values.setdefault("rope_type", default("default"))
    values.setdefault("rope_theta", theta)
    for key, value in values.items():
        fields.record(key, value)
    block = next((name for name in (_NEW, _OLD) if blocks[name]), None)
    try:
        return RopeConfig(
            type=values["rope_type"].value,
            theta=values["rope_theta"].value,
            **{key: values[key].value for key in (*_NUMBERS[1:], _LENGTH) if key in values},
        )
    except ConfigError as error:
        where = f"{block}: " if block else ""
        raise type(error)(f"{where}{error}", error.key) from None


def parse_layer_ropes(
    fields: Fields, head_dim: int, theta: Fallback, local_theta: Fallback
) -> dict[str, RopeConfig]:
    """RopeConfig of each kind of layer, as Gemma 3 spells them.

    In ``rope_parameters`` each kind has a block of its own. Before, ``rope_theta`` and
    ``rope_scaling`` were of full layers alone, and ``rope_local_base_freq`` was the base of
    windowed ones. Raises as ``parse_rope``.
    """
    blocks = {} if fields.take(_NEW) is None else fields.take(_NEW)
    if not isinstance(blocks, dict) or not blocks.keys() <= {"full_attention", "sliding_attention"}:
        raise UnsupportedModelError(
            f"{_NEW}: expected a block for full_attention and one for sliding_attention, found "
            f"{shorten(blocks)}",
            _NEW,
        )
    local = fields.take("rope_local_base_freq")
    if local is not None:
        check_number("rope_local_base_freq", local)
    top = {
        "full_attention": {key: fields.take(key) for key in ("rope_theta", _OLD)},
        "sliding_attention": {"rope_theta": local},
    }
    ropes = {}
    for kind, fallback in (("full_attention", theta), ("sliding_attention", local_theta)):
        own = Fields({_NEW: blocks.get(kind), **top[kind]})
        try:
            ropes[kind] = parse_rope(own, head_dim, fallback)
        except ConfigError as error:
            raise type(error)(f"{kind}: {error}", error.key) from None
        prefix = "" if kind == "full_attention" else f"{kind}."
        fields.sources.update({f"{prefix}{key}": own.sources[key] for key in own.sources})
    return ropes


def _read_block(fields: Fields, name: str) -> dict[str, object]:
    """One block with ``rope_type`` for both spellings and numbers as floats; {} when unset."""
    raw = fields.take(name)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: expected an object or null, found {shorten(raw)}", name)
    given = {key: value for key, value in raw.items() if value is not None}
    if not given:
        return {}
    block: dict[str, object] = {"rope_type": _rope_type(name, given)}
    for key, value in given.items():
        path = f"{name}.{key}"
        if key in ("rope_type", "type"):
            continue
        if isinstance(value, dict):
            raise UnsupportedModelError(
                f"{path}: expected a number, found {shorten(value)}: RoPE settings for each kind "
                "of layer are not supported",
                path,
            )
        if key not in (*_NUMBERS, _LENGTH, "partial_rotary_factor"):
            raise UnsupportedModelError(
                f"{path}: unknown RoPE setting, found {shorten(value)}: it may change the model, "
                "so it is not ignored",
                path,
            )
        block[key] = _convert(key, path, value)
    return block


def _rope_type(name: str, given: dict[str, object]) -> object:
    kinds = [given[key] for key in ("rope_type", "type") if key in given]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise ConfigError(
            f"{name}: rope_type {shorten(kinds[0])} contradicts type {shorten(kinds[1])}: "
            "keep the right one",
            f"{name}.rope_type",
        )
    kind = kinds[0] if kinds else "default"
    # Judged before the other keys: what they mean depends on it.
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        raise UnsupportedModelError(
            f"{name}.rope_type: expected one of {', '.join(ROPE_TYPES)}, found {shorten(kind)}: "
            "this scaling is not supported",
            f"{name}.rope_type",
        )
    return kind


def _convert(key: str, path: str, value: object) -> float | int:
    return check_integer(path, value) if key == _LENGTH else check_number(path, value)


def _merge(fields: Fields, places: dict[str, dict[str, object]]) -> dict[str, Fallback]:
    """Each setting once, with its source. Raises ConfigError where two places differ."""
    values: dict[str, Fallback] = {}
    for place, settings in places.items():
        source = place if place == _TOP else f"{_TOP} ({place})"
        for key, value in settings.items():
            if key not in values:
                values[key] = Fallback(value, source)
            elif values[key].value != value:
                raise ConfigError(
                    f"{key}: {values[key].source} says {shorten(values[key].value)}, {source} "
                    f"says {shorten(value)}: keep the right one",
                    key,
                )
    return values


def _refuse_partial_rotation(
    fields: Fields, places: dict[str, dict[str, object]], head_dim: int
) -> None:
    """Three names for rotating a part of each head; only the whole is implemented."""
    shares = {
        f"{name}.partial_rotary_factor": settings.get("partial_rotary_factor")
        for name, settings in places.items()
    }
    shares |= {key: fields.take(key) for key in ("partial_rotary_factor", "rotary_pct")}
    for path, share in shares.items():
        if share is not None and check_number(path, share) != 1.0:
            raise UnsupportedModelError(
                f"{path}: expected 1, found {shorten(share)}: partial rotation is not supported",
                path,
            )
    width = fields.take("rotary_dim")
    if width is not None and check_integer("rotary_dim", width) != head_dim:
        raise UnsupportedModelError(
            f"rotary_dim: expected head_dim ({head_dim}), found {width}: partial rotation is not "
            "supported",
            "rotary_dim",
        )
