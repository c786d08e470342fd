"""RoPE settings of config.json in all their spellings, brought into one RopeConfig.

transformers 5 writes one block ``rope_parameters``; before, ``rope_theta`` stood at the top level
and ``rope_scaling`` held the rest, with ``type`` later renamed ``rope_type``. Where two places give
one setting they must agree: a reader that picks one would run a model that nobody trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import check_integer, check_number, shorten
from kestrel.models.fields import Fallback, Fields, default
from kestrel.models.rope_config import ROPE_TYPES, RopeConfig
from kestrel.models.rope_defaults import complete

__all__ = ["RopeRules", "parse_layer_ropes", "parse_rope"]

_NEW, _OLD, _TOP = "rope_parameters", "rope_scaling", "config.json"
_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "attention_factor")
_NUMBERS += ("beta_fast", "beta_slow")
_OR_ZERO = ("mscale", "mscale_all_dim")  # 0 is none, as in transformers
_LENGTH, _SHARE = "original_max_position_embeddings", "partial_rotary_factor"
_LISTS = ("short_factor", "long_factor")
_SETTINGS = (*_NUMBERS, *_OR_ZERO, _LENGTH, *_LISTS, "truncate")


@dataclass(frozen=True)
class RopeRules:
    """What a family's class of transformers makes of RoPE settings.

    Attributes:
        types: the types that it takes.
        aliases: old names of types to today's.
        is_partial: it rotates a part of each head when ``partial_rotary_factor`` says so.
        original: for an absent ``original_max_position_embeddings`` at the top level, where the
            class has a field of this name, which decides; None: it has none.
    """

    types: tuple[str, ...] = ROPE_TYPES
    aliases: Mapping[str, str] = field(default_factory=dict)
    is_partial: bool = False
    original: Fallback | None = None


def parse_rope(
    fields: Fields,
    head_dim: int,
    theta: Fallback,
    context: int,
    rules: RopeRules = RopeRules(),
) -> RopeConfig:
    """RopeConfig of a config.json.

    Args:
        fields: the config.json.
        head_dim: columns of a head.
        theta: for an absent ``rope_theta``.
        context: ``max_position_embeddings``.
        rules: of the family.

    Raises ConfigError for a wrong value or a contradiction, UnsupportedModelError for a scaling,
    a partial rotation or a key that is not implemented; each names the field.
    """
    blocks = {name: _read_block(fields, name, rules) for name in (_NEW, _OLD)}
    top = {key: fields.take(key) for key in ("rope_theta", _LENGTH, _SHARE)}
    places = {**blocks, _TOP: {k: _convert(k, k, v) for k, v in top.items() if v is not None}}
    if not rules.is_partial:
        _refuse_partial_rotation(fields, places, head_dim)
    values = _merge(places, rules)
    values.setdefault("rope_type", default("default"))
    values.setdefault("rope_theta", theta)
    share = values.pop(_SHARE, default(1.0))
    if rules.original is not None and values["rope_type"].value == "default":
        values.pop(_LENGTH, None)  # the class has it, and the type does not use it
    block = next((name for name in (_NEW, _OLD) if blocks[name]), None)
    try:
        complete(values, context, is_factor_null=_is_null(fields, "factor"))
        for key, value in values.items():
            fields.record(key, value)
        rope = RopeConfig(
            type=values["rope_type"].value,
            theta=values["rope_theta"].value,
            rotary_dim=_rotary_dim(fields, share, head_dim) if rules.is_partial else None,
            max_position_embeddings=context if values["rope_type"].value == "dynamic" else None,
            **{key: values[key].value for key in _SETTINGS[1:] if key in values},
        )
        rope.table_rows(head_dim, rope.stretched(context))
    except ConfigError as error:
        where = f"{block}: " if block else ""
        raise type(error)(f"{where}{error}", error.key) from None
    return rope


def parse_layer_ropes(
    fields: Fields, head_dim: int, theta: Fallback, local_theta: Fallback, context: int
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
    _refuse_old_name_of_type(fields.take(_OLD))
    top = {
        "full_attention": {key: fields.take(key) for key in ("rope_theta", _OLD)},
        "sliding_attention": {"rope_theta": local},
    }
    ropes = {}
    for kind, fallback in (("full_attention", theta), ("sliding_attention", local_theta)):
        own = Fields({_NEW: blocks.get(kind), **top[kind]})
        try:
            ropes[kind] = parse_rope(own, head_dim, fallback, context)
            if ropes[kind].truncate is False:
                # transformers looks for it beside the blocks.
                raise UnsupportedModelError(
                    "truncate: expected true, found false: transformers does not read it in the "
                    "block of a kind of layer",
                    "truncate",
                )
        except ConfigError as error:
            raise type(error)(f"{kind}: {error}", error.key) from None
        prefix = "" if kind == "full_attention" else f"{kind}."
        fields.sources.update({f"{prefix}{key}": own.sources[key] for key in own.sources})
    return ropes


def _refuse_old_name_of_type(block: object) -> None:
    """Gemma3TextConfig lays the block over one whose ``rope_type`` is default, which stays."""
    if not isinstance(block, dict) or block.get("rope_type") is not None:
        return
    if block.get("type") not in (None, "default"):
        raise UnsupportedModelError(
            f"{_OLD}.type: found {shorten(block['type'])}: for this model_type transformers reads "
            "rope_type alone, and would leave the scaling out: rename the key to rope_type if the "
            "model was trained with it",
            f"{_OLD}.type",
        )


def _read_block(fields: Fields, name: str, rules: RopeRules) -> dict[str, object]:
    """One block with ``rope_type`` for both spellings and numbers as floats; {} when unset."""
    raw = fields.take(name)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: expected an object or null, found {shorten(raw)}", name)
    given = {key: value for key, value in raw.items() if value is not None}
    if not given:
        return {}
    block: dict[str, object] = {"rope_type": _rope_type(name, given, rules)}
    for key, value in given.items():
        path = f"{name}.{key}"
        if key in ("rope_type", "type"):
            continue
        if isinstance(value, dict):
            raise UnsupportedModelError(
                f"{path}: expected a number, found {shorten(value)}: RoPE settings for each kind "
                "of layer are not supported for this model_type",
                path,
            )
        if key not in (*_SETTINGS, _SHARE):
            raise UnsupportedModelError(
                f"{path}: unknown RoPE setting, found {shorten(value)}: it may change the model, "
                "so it is not ignored",
                path,
            )
        block[key] = _convert(key, path, value)
    return block


def _rope_type(name: str, given: dict[str, object], rules: RopeRules) -> object:
    kinds = [given[key] for key in ("rope_type", "type") if key in given]
    kinds = [rules.aliases.get(k, k) if isinstance(k, str) else k for k in kinds]
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        raise ConfigError(
            f"{name}: rope_type {shorten(kinds[0])} contradicts type {shorten(kinds[1])}: "
            "keep the right one",
            f"{name}.rope_type",
        )
    kind = kinds[0] if kinds else "default"
    # Judged before the other keys: what they mean depends on it.
    if not isinstance(kind, str) or kind not in rules.types:
        raise UnsupportedModelError(
            f"{name}.rope_type: expected one of {', '.join(rules.types)}, found {shorten(kind)}: "
            "this scaling is not supported",
            f"{name}.rope_type",
        )
    return kind


def _convert(key: str, path: str, value: object) -> object:
    if key == _LENGTH:
        return check_integer(path, value)
    if key in _LISTS:
        if not isinstance(value, list):
            raise ConfigError(f"{path}: expected a list of numbers, found {shorten(value)}", path)
        return tuple(check_number(f"{path}[{i}]", each) for i, each in enumerate(value))
    if key == "truncate":
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: expected true or false, found {shorten(value)}", path)
        return value
    return check_number(path, value, above=-1.0 if key in _OR_ZERO else 0.0)


def _is_null(fields: Fields, key: str) -> bool:
    """Whether a block holds the key, with null as its value."""
    blocks = (fields.take(name) or {} for name in (_NEW, _OLD))
    return any(key in block and block[key] is None for block in blocks)


def _merge(places: dict[str, dict[str, object]], rules: RopeRules) -> dict[str, Fallback]:
    """Each setting once, with its source. Raises ConfigError where two places differ."""
    values: dict[str, Fallback] = {}
    if rules.original is not None and _LENGTH not in places[_TOP]:
        values[_LENGTH] = rules.original
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
    """Three names for rotating a part of each head, which the class of this family does not do."""
    shares = {
        _SHARE if name == _TOP else f"{name}.{_SHARE}": settings.pop(_SHARE, None)
        for name, settings in places.items()
    }
    shares["rotary_pct"] = fields.take("rotary_pct")
    for path, share in shares.items():
        if share is not None and check_number(path, share) != 1.0:
            raise UnsupportedModelError(
                f"{path}: expected 1, found {shorten(share)}: partial rotation is not supported "
                "for this model_type",
                path,
            )
    _check_rotary_dim(fields, head_dim, "head_dim")


def _rotary_dim(fields: Fields, share: Fallback, head_dim: int) -> int | None:
    """Columns that are rotated, None for all. The class reads ``partial_rotary_factor`` alone;
    another name for it must say the same."""
    other = fields.take("rotary_pct")
    if other is not None and check_number("rotary_pct", other) != share.value:
        raise ConfigError(
            f"rotary_pct: expected {_SHARE} ({share.value:g}, {share.source}), found "
            f"{shorten(other)}: keep the right one",
            "rotary_pct",
        )
    width = int(head_dim * share.value)
    _check_rotary_dim(fields, width, f"head_dim * {_SHARE}")
    fields.sources["rotary_dim"] = f"implied by {_SHARE} ({share.value:g}, {share.source})"
    return None if width == head_dim else width


def _check_rotary_dim(fields: Fields, width: int, what: str) -> None:
    given = fields.take("rotary_dim")
    if given is not None and check_integer("rotary_dim", given) != width:
        raise UnsupportedModelError(
            f"rotary_dim: expected {what} ({width}), found {given}: partial rotation by this name "
            "is not supported for this model_type",
            "rotary_dim",
        )
