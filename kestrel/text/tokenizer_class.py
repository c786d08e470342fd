"""What transformers' class of a tokenizer does beside tokenizer.json.

transformers (5.24) takes the class that tokenizer_config.json names, unless the model's type
decides (``models/auto/tokenization_auto.py`` there). A class has texts for special tokens that no
file names, and a few make parts of the pipeline themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kestrel.text.parts import flatten, kinds, state

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["DEFAULT_TOKENS", "class_of", "follow_prefix_space", "legacy_notes"]

_END = "<|endoftext|>"

#: Texts of the named tokens that no file has a key for, by class.
DEFAULT_TOKENS: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": {"bos_token": _END, "eos_token": _END, "unk_token": _END},
    "Qwen2Tokenizer": {"eos_token": _END, "unk_token": _END, "pad_token": _END},
    "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "GemmaTokenizer": {
        "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>",
        "mask_token": "<mask>",
    },
}  # fmt: skip

#: Model types whose class stands fast, whatever tokenizer_config.json names; None follows
#: tokenizer.json and has no texts of its own.
_BY_MODEL_TYPE = {
    "mistral": None, "phi3": None, "olmo2": None, "granite": None, "qwen2": "Qwen2Tokenizer",
}  # fmt: skip

#: Model types with a class of their own where no file names one.
_DEFAULT_CLASS = {
    "qwen3": "Qwen2Tokenizer", "gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
}  # fmt: skip

#: Classes that make the pre-tokenizer themselves, with the config's add_prefix_space: its steps.
_PRE_TOKENIZER = {"GPT2Tokenizer": ["ByteLevel"], "Qwen2Tokenizer": ["Split", "ByteLevel"]}


def class_of(name: object, model_type: object, is_byte_level: bool) -> str | None:
    """The class, if it is one of DEFAULT_TOKENS; None stands for those that have no texts.

    Args:
        name: the tokenizer_class of tokenizer_config.json, else of config.json, or None.
        model_type: config.json's, or None.
        is_byte_level: whether tokenizer.json splits into bytes: LlamaTokenizer is left aside then.
    """
    model_type = model_type if isinstance(model_type, str) else ""
    if model_type in _BY_MODEL_TYPE:
        return _BY_MODEL_TYPE[model_type]
    name = name or _DEFAULT_CLASS.get(model_type)
    name = name.removesuffix("Fast") if isinstance(name, str) else None
    if name not in DEFAULT_TOKENS or (name == "LlamaTokenizer" and is_byte_level):
        return None
    return name


def follow_prefix_space(
    backend: Tokenizer, wanted: bool | None, class_name: str | None
) -> list[str]:
    """Make a byte-level pipeline follow add_prefix_space where the class does.

    Returns what is to be said where the pipeline does otherwise than ``wanted``.
    """
    if wanted is None or wanted == _puts_blank(backend):
        return []
    steps = kinds(backend.pre_tokenizer, "pretokenizers")
    if class_name in _PRE_TOKENIZER and steps == _PRE_TOKENIZER[class_name]:
        last = backend.pre_tokenizer if len(steps) == 1 else backend.pre_tokenizer[len(steps) - 1]
        last.add_prefix_space = wanted
        return []
    follower = f"; {class_name} of transformers follows the config" if class_name else ""
    blank = "no blank" if wanted else "a blank"
    return [
        f"tokenizer_config.json: add_prefix_space is {str(wanted).lower()}, tokenizer.json puts "
        f"{blank} in front of a text: tokenizer.json decides{follower}"
    ]


def legacy_notes(backend: Tokenizer, class_name: str | None) -> list[str]:
    """What is to be said of a pipeline that the class would make in another way."""
    if class_name != "LlamaTokenizer" or "Prepend" not in (_kinds_of_normalizer(backend) or []):
        return []
    return [
        "tokenizer.json decides about ids, with its older way of putting a blank in front; "
        "transformers 5 makes the pipeline of its LlamaTokenizer anew, which gives other ids to a "
        "text that begins with a blank, and may after a control word"
    ]


def _puts_blank(backend: Tokenizer) -> bool:
    if "Prepend" in (_kinds_of_normalizer(backend) or []):
        return True
    spec = state(backend.pre_tokenizer)
    steps: list[dict[str, Any]] = [] if spec is None else flatten(spec, "pretokenizers")
    return any(
        step.get("add_prefix_space", False) or step.get("prepend_scheme", "never") != "never"
        for step in steps
    )


def _kinds_of_normalizer(backend: Tokenizer) -> list[str] | None:
    return kinds(backend.normalizer, "normalizers")
