"""Model families: a checkpoint understood as a DecoderConfig and its weights, or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from kestrel.errors import ConfigError, UnsupportedModelError
from kestrel.models.checks import shorten
from kestrel.models.config import DecoderConfig
from kestrel.models.limits import Limits
from kestrel.models.family import Family, locate
from kestrel.models.relatives import RELATIVES
from kestrel.models.rope_config import RopeConfig
from kestrel.models.weights import DecoderWeights, bind

if TYPE_CHECKING:
    from kestrel.checkpoint import Checkpoint

__all__ = ["FAMILIES", "DecoderConfig", "Family", "Limits", "RopeConfig", "Understood"]
__all__ += ["family_for", "understand"]


class _Families(Mapping[str, Family]):
    """model_type to Family. A module is imported when it is asked for: a model has one family."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getitem__(self, model_type: str) -> Family:
        if model_type not in self._names:
            raise KeyError(model_type)
        return import_module(f"kestrel.models.{model_type}").FAMILY

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


#: A new family is one module, and its name here.
FAMILIES: Mapping[str, Family] = _Families(
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text", "olmo2",
    "granite", "phi3",
)  # fmt: skip


class Understood(NamedTuple):
    """What a checkpoint is: its config, its tensors by use, and notes for the user on all of it."""

    config: DecoderConfig
    weights: DecoderWeights
    notes: list[str]


def understand(checkpoint: "Checkpoint") -> Understood:
    """Read the config.json of a checkpoint by its family, and bind its tensors.

    Raises as ``family_for``, ``Family.parse`` and ``bind`` do.
    """
    raw, file = checkpoint.config, checkpoint.folder / "config.json"
    family = family_for(raw, file)
    config = family.parse(raw, file)
    weights, notes = bind(checkpoint, config, family)
    return Understood(config, weights, [*checkpoint.notes, *config.notes, *notes])


def family_for(config: Mapping[str, object], file: object = None) -> Family:
    """The family that a config.json names; ``file`` is its path, for messages.

    Raises UnsupportedModelError when ``model_type`` or one of ``architectures`` is not supported,
    with the list of what is; ConfigError when ``architectures`` is not a list of names.
    """
    try:
        return _family_for(config)
    except ConfigError as error:
        raise locate(error, file) from None


def _family_for(config: Mapping[str, object]) -> Family:
    supported = ", ".join(sorted(FAMILIES))
    model_type = config.get("model_type")
    if model_type is None:
        raise UnsupportedModelError(
            "model_type: it is absent, so nothing says how the model computes: expected one of "
            f"{supported}",
            "model_type",
        )
    name = model_type if isinstance(model_type, str) else ""
    family = FAMILIES.get(name)
    if family is None:
        what = RELATIVES.get(name)
        raise UnsupportedModelError(
            f"model_type: expected one of {supported}, found {shorten(model_type)}: "
            + (f"it is {what}" if what else "this architecture is not supported"),
            "model_type",
        )
    classes = config.get("architectures")
    if classes is None:
        return family
    if not isinstance(classes, list) or not classes:
        raise ConfigError(
            f"architectures: expected a list of class names, found {shorten(classes)}",
            "architectures",
        )
    for name in classes:
        if name not in family.architectures:
            raise UnsupportedModelError(
                f"architectures: expected {' or '.join(family.architectures)} for model_type "
                f"{model_type}, found {shorten(name)}: this head or variant is not supported",
                "architectures",
            )
    return family
