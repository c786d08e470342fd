"""What generation_config.json says about choosing tokens, and which tokens end an answer.

transformers' rules decide what the file means (5.24, ``generation/configuration_utils.py``):
without ``do_sample: true`` decoding is greedy; with it the options that the file does not set have
defaults, of which ``top_k`` 50 is the one that surprises. Every key that the file may have is in
``RULES``; one that is not there, or asks for something that would change the answer and is not
implemented, is refused by name. Where there is no such file, the same keys count in config.json.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kestrel.errors import ConfigError, RequestError
from kestrel.generation_rules import RULES, Rule
from kestrel.models.checks import shorten
from kestrel.sampling.params import SamplingParams

if TYPE_CHECKING:
    from kestrel.checkpoint import Checkpoint
    from kestrel.tokenizer import Tokenizer

__all__ = [
    "RULES", "GenerationSettings", "default_params", "end_token_ids", "end_token_notes",
    "generation_notes", "read_generation",
]  # fmt: skip

FILE = "generation_config.json"
_CONFIG = "config.json"
_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """How a model's answers are made unless a request says otherwise.

    Attributes:
        defaults, sources: see ``default_params``.
        end_ids: see ``end_token_ids``.
        notes: see ``generation_notes`` and ``end_token_notes``; and settings that stand in
            config.json to no effect.
    """

    defaults: SamplingParams
    sources: dict[str, str]
    end_ids: dict[int, list[str]]
    notes: list[str]


def read_generation(checkpoint: Checkpoint, tokenizer: Tokenizer | None) -> GenerationSettings:
    """What the files of a model folder say. Raises ConfigError with the path of the file."""
    config, generation_config = checkpoint.config, checkpoint.generation_config
    file, settings, notes = FILE, generation_config, []
    if settings is None:
        file = _CONFIG
        settings = {key: value for key, value in config.items() if key in RULES}
    elif idle := sorted(key for key in config if _acts(key, config[key])):
        notes.append(
            f"{_CONFIG}: {', '.join(idle)} without effect: where there is a {FILE}, it alone "
            "says how tokens are chosen, as in transformers"
        )
    try:
        defaults, sources = default_params(settings, file)
        end_ids = end_token_ids(config, generation_config, tokenizer)
        notes += generation_notes(settings, file)
    except ConfigError as error:
        # Each message begins with the name of its file.
        path = checkpoint.folder / str(error).partition(":")[0]
        raise ConfigError(f"{checkpoint.folder / str(error)}", error.key, path) from None
    notes += end_token_notes(end_ids, file)
    return GenerationSettings(defaults, sources, end_ids, notes)


def default_params(
    generation_config: Mapping[str, object] | None, file: str = FILE
) -> tuple[SamplingParams, dict[str, str]]:
    """The model's own sampling options, and for each option where its value is from.

    Args:
        generation_config: the file's content; None where there is none: greedy.
        file: its name, for messages and sources.

    Raises:
        ConfigError: a key that is not known, a value of the wrong type or out of range, or one that
            asks for what is not implemented.
    """
    options, sources, _ = _read(generation_config or {}, file)
    params = SamplingParams(**options)
    return params, {f.name: sources.get(f.name, _DEFAULT) for f in fields(params)}


def generation_notes(
    generation_config: Mapping[str, object] | None, file: str = FILE
) -> list[str]:
    """A sentence for each setting of the file that is not followed. Raises as default_params."""
    return _read(generation_config or {}, file)[2]


def end_token_ids(
    config: Mapping[str, object],
    generation_config: Mapping[str, object] | None,
    tokenizer: Tokenizer | None = None,
) -> dict[int, list[str]]:
    """Ids that end an answer, each with the places that name it: the union of all, ascending.

    Places are config.json, generation_config.json (``eos_token_id``, an id or a list) and the
    tokenizer's eos_token. Raises ConfigError when an id is no integer of at least 0.
    """
    found: dict[int, list[str]] = {}
    for file, source in ((_CONFIG, config), (FILE, generation_config or {})):
        for token_id in _ids(file, source.get("eos_token_id")):
            place = f"{file} eos_token_id"
            if place not in found.setdefault(token_id, []):
                found[token_id].append(place)
    for token_id, place in (tokenizer.eos_ids if tokenizer else {}).items():
        found.setdefault(token_id, []).append(place)
    return dict(sorted(found.items()))


def end_token_notes(end_ids: Mapping[int, list[str]], file: str) -> list[str]:
    """What is to be said where transformers' ``generate`` would go past some of the end tokens.

    It follows the ``eos_token_id`` of ``file`` alone, which is generation_config.json, or
    config.json where there is no such file.
    """
    followed = [each for each, places in end_ids.items() if f"{file} eos_token_id" in places]
    others = [each for each in end_ids if each not in followed]
    if not others:
        return []
    listed = ", ".join(f"{each} ({'; '.join(end_ids[each])})" for each in others)
    return [
        f"answers end at {listed} too; transformers' generate follows {file} alone, eos_token_id "
        f"{', '.join(map(str, followed)) or 'none'}: --ignore-eos and --stop-token ID (ignore_eos, "
        "stop_token_ids) end answers where you say"
    ]


def _ids(file: str, value: object) -> list[int]:
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    for token_id in ids:
        is_integer = isinstance(token_id, int) and not isinstance(token_id, bool)
        if not is_integer or not 0 <= token_id < 2**31:  # steps hold ids as int32
            raise ConfigError(
                f"{file}: eos_token_id: expected a token id (an integer from 0 to 2147483647), a "
                f"list of them, or null, found {value!r:.80}",
                "eos_token_id",
            )
    return ids


def _acts(key: str, value: object) -> bool:
    """Whether it is a setting of generation that asks for something."""
    rule = RULES.get(key, Rule("harmless"))
    return rule.kind != "harmless" and value is not None and not _is_neutral(value, rule.neutral)


def _read(
    config: Mapping[str, object], file: str
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Options for SamplingParams, where each is from, and notes."""
    sampling = config.get("do_sample")
    if sampling is not None and not isinstance(sampling, bool):
        raise ConfigError(
            f"{file}: do_sample: expected true or false, found {shorten(sampling)}", "do_sample"
        )
    options: dict[str, Any] = {} if sampling else {"temperature": 0.0}
    sources = {}
    if not sampling:
        sources["temperature"] = f"greedy, because {file} does not say do_sample: true"
    notes = []
    for name, value in config.items():
        if value is None:
            continue
        rule = RULES.get(name)
        if rule is None:
            raise ConfigError(_unknown(file, name, value), name)
        kind = rule.kind
        followed = kind == "option" or (kind == "sampling" and sampling)
        if followed and rule.detail:
            _follow(file, name, rule.detail, value, options)
            sources[rule.detail] = f"{file} {name}"
        elif followed or kind == "harmless" or _is_neutral(value, rule.neutral):
            continue
        elif kind == "refused" or (kind == "sampling refused" and sampling):
            raise ConfigError(_refusal(file, name, value, rule), name)
        elif kind == "noted":
            notes.append(f"{file}: {name} {shorten(value)} is not followed: {rule.detail}")
        else:
            notes.append(f"{file}: {name} {shorten(value)} is not used: do_sample is not true")
    if sampling:
        for rule in RULES.values():
            if rule.kind == "sampling" and rule.detail not in options:
                options[rule.detail] = rule.default
                sources[rule.detail] = "transformers' default where do_sample is true"
    return options, sources, notes


def _follow(file: str, name: str, option: str, value: object, options: dict[str, Any]) -> None:
    if option == "stop" and isinstance(value, str):
        value = (value,)
    try:
        options[option] = getattr(SamplingParams(**{option: value}), option)
    except RequestError as error:
        message = str(error).replace(f"sampling option {option}", name)
        raise ConfigError(f"{file}: {message}", name) from None


def _is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    # False == 0 in Python, and a flag where a number belongs is not understood.
    return any(
        value == other and (type(value) is bool) == (type(other) is bool) for other in neutral
    )


def _refusal(file: str, name: str, value: object, rule: Rule) -> str:
    expected = " or ".join([*map(repr, rule.neutral), "null"])
    return (
        f"{file}: {name}: expected {expected}, found {shorten(value)}: {rule.detail} is not "
        f"implemented, and would change the answer; remove the key to go without it{rule.instead}"
    )


def _unknown(file: str, name: str, value: object) -> str:
    near = difflib.get_close_matches(name, RULES, n=1)
    hint = f", perhaps meant as {near[0]!r}" if near else ""
    return (
        f"{file}: {name}: not known{hint}, found {shorten(value)}: whether it changes the answer "
        "cannot be told; remove the key if it does not matter"
    )
