"""Names of tensors: the prefixes that checkpoints use, and messages about names that do not fit."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kestrel.errors import MissingTensorError, UnexpectedTensorError

if TYPE_CHECKING:
    from kestrel.checkpoint import Checkpoint, TensorView

__all__ = ["Naming", "choose_naming", "missing_error", "unexpected_error"]

_SHOWN = 3  # names in a message; the count says the rest
# Suffixes that quantized checkpoints (FP8, GPTQ, AWQ, compressed-tensors, bitsandbytes) add.
_QUANTIZED = (
    "*_scale_inv", "*.weight_scale", "*.weight_scale_2", "*.input_scale", "*.weight_packed",
    "*.weight_shape", "*.weight_zero_point", "*.qweight", "*.qzeros", "*.scales", "*.g_idx",
    "*.SCB", "*.absmax", "*.quant_map", "*.quant_state.*", "*.biases", "*.weight_format",
)  # fmt: skip


@dataclass(frozen=True)
class Naming:
    """How a checkpoint spells the standard names ``model.*`` and ``lm_head.*``.

    Attributes:
        body: what stands where the standard names have ``model.``.
        head: what stands in front of ``lm_head.``.
    """

    body: str
    head: str = ""

    def stored(self, name: str) -> str:
        """The checkpoint's name of a standard name."""
        if name.startswith("model."):
            return self.body + name.removeprefix("model.")
        return self.head + name

    def __str__(self) -> str:
        return self.body or "(no prefix)"


# The text part of a multimodal model, saved in three ways; a decoder with its head; one alone.
# Specific before general: of two that fit equally well the first is taken.
_NAMINGS = (
    Naming("model.language_model."),
    Naming("language_model.model.", "language_model."),
    Naming("language_model.model."),
    Naming("model."),
    Naming(""),
)


def choose_naming(wanted: Iterable[str], tensors: "Mapping[str, TensorView]") -> Naming:
    """The naming under which most of the wanted tensors exist; it then holds for all of them."""
    names = list(wanted)
    counts = [sum(naming.stored(name) in tensors for name in names) for naming in _NAMINGS]
    return _NAMINGS[counts.index(max(counts))] if any(counts) else Naming("model.")


def missing_error(
    checkpoint: "Checkpoint",
    missing: list[str],
    wanted: int,
    unused: Collection[str],
    model_type: str,
) -> MissingTensorError:
    """The error about wanted tensors that are not there, with the nearest unused names."""
    advice = _advice(unused, model_type) or (
        "rename these, or get the checkpoint that config.json belongs to"
        if unused
        else "get the rest of the checkpoint"
    )
    if len(missing) == 1 and missing[0].endswith("lm_head.weight"):
        advice = "if the embedding is the head too, set tie_word_embeddings to true in config.json"
    candidates = sorted(unused)
    shown = []
    for name in missing[:_SHOWN]:
        near = difflib.get_close_matches(name, candidates[:2000], n=1, cutoff=0.8)
        shown.append(f"{name!r}" + (f" (near: {near[0]!r})" if near else ""))
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    extra = f"; without a place ({len(unused)}): {_listed(candidates)}" if unused else ""
    return MissingTensorError(
        f"{checkpoint.folder}: missing tensors ({len(missing)} of {wanted}): {', '.join(shown)}"
        f"{more}{extra}: {advice}",
        checkpoint.folder,
    )


def unexpected_error(
    checkpoint: "Checkpoint", unused: Collection[str], model_type: str
) -> UnexpectedTensorError:
    """The error about tensors that the model would leave unused."""
    names = sorted(unused)
    first = checkpoint.tensors[names[0]]
    return UnexpectedTensorError(
        f"{first.file}: tensors without a place in the model of config.json ({len(names)}): "
        f"{_listed(names)}: "
        + (_advice(unused, model_type) or "config.json belongs to another checkpoint"),
        first.file,
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(repr(name) for name in names[:_SHOWN]) + more


def _advice(unused: Collection[str], model_type: str) -> str:
    if any(fnmatchcase(name, pattern) for name in unused for pattern in _QUANTIZED):
        return (
            "this is a quantized checkpoint, which is not supported: use the model's float32, "
            "float16 or bfloat16 checkpoint"
        )
    if any(".bias" in name for name in unused):
        return (
            f"a {model_type} model of this config.json has no such bias: attention_bias and "
            "mlp_bias announce biases, in families that have these fields"
        )
    if any(".lora_" in name for name in unused):
        return "merge the LoRA adapter into the model first"
    return ""
