"""Read the files of a tokenizer: tokenizer.json, tokenizer_config.json and chat templates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kestrel.checkpoint.diagnose import HEAD_BYTES, describe
from kestrel.checkpoint.files import broken_link, read_json_object, read_small
from kestrel.checkpoint.strict_json import JsonError, check_keys
from kestrel.errors import CheckpointError, TokenizerError

__all__ = ["NAMED_TOKENS", "TokenizerFiles", "read_tokenizer_files"]

#: The special tokens that have a name; transformers hands them to chat templates under it.
NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files say.

    Attributes:
        path: of tokenizer.json.
        tokenizer_json: its bytes, not parsed.
        named_tokens: texts of the named special tokens that are set.
        adds: ``add_bos_token`` and ``add_eos_token``, where they are set.
        chat_templates: Jinja sources by name; a model with one template has it as ``default``.
        warnings: sentences about settings that are not followed.
    """

    path: Path
    tokenizer_json: bytes
    named_tokens: dict[str, str]
    adds: dict[str, bool]
    chat_templates: dict[str, str]
    warnings: list[str]

    def doubts(self, id_of: Callable[[str], int | None], around: list[int]) -> list[str]:
        """Sentences about what tokenizer_config.json says and tokenizer.json does not do.

        Args:
            id_of: the id of a token; None where there is none.
            around: the ids that the post-processor of tokenizer.json puts around a prompt.
        """
        doubts = [
            f"tokenizer_config.json: {name} {token!r} is no token of tokenizer.json: not used"
            for name, token in self.named_tokens.items()
            if id_of(token) is None
        ]
        for flag, wanted in self.adds.items():
            token = self.named_tokens.get(flag.removeprefix("add_"))
            token_id = None if token is None else id_of(token)
            found = token_id in around
            if token_id is not None and wanted != found:
                doubts.append(
                    f"tokenizer_config.json: {flag} is {str(wanted).lower()}, the post-processor "
                    f"of tokenizer.json adds {'one' if found else 'none'}: the post-processor "
                    "decides here, the flag in transformers"
                )
        return doubts


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read them. Raises TokenizerError when tokenizer.json is absent or another file is broken."""
    path = folder / "tokenizer.json"
    config_path = folder / "tokenizer_config.json"
    config = _optional_object(config_path)
    warnings = []
    if config.get("clean_up_tokenization_spaces"):
        warnings.append(
            f"{config_path}: clean_up_tokenization_spaces is not followed: text is decoded as "
            "tokenizer.json says, with every blank"
        )
    return TokenizerFiles(
        path=path,
        tokenizer_json=_read(path),
        named_tokens=_named_tokens(folder, config),
        adds=_adds(config_path, config),
        chat_templates=_chat_templates(folder, config),
        warnings=warnings,
    )


def _read(path: Path) -> bytes:
    if not path.exists() and broken_link(path) is None:
        raise TokenizerError(_absent(path), path)
    try:
        data = read_small(path)
    except CheckpointError as error:
        raise TokenizerError(str(error), path) from error
    size = len(data)
    if not data.lstrip().startswith(b"{"):
        kind = describe(data[:HEAD_BYTES], size) or "not JSON: download the file again"
        raise TokenizerError(f"{path}: {size:,} bytes, {kind}", path)
    try:
        _check_vocabulary(path, check_keys(data))
    except JsonError as error:
        raise TokenizerError(
            f"{path}: {size:,} bytes, cannot be read as a tokenizer: {error}: correct it, or "
            "download it again",
            path,
        ) from None
    return data


def _check_vocabulary(path: Path, content: object) -> None:
    """Refuse an id that two tokens of model.vocab have: which of them it means would be chance."""
    model = content.get("model") if isinstance(content, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):  # a list numbers its tokens itself
        return
    try:
        if len(set(vocabulary.values())) == len(vocabulary):
            return
    except TypeError:  # an id that is no number: the library says so
        return
    owners: dict[object, str] = {}
    for token, token_id in vocabulary.items():
        other = owners.setdefault(token_id, token)
        if other != token:
            raise TokenizerError(
                f"{path}: model.vocab: expected an id of its own for each token, found {token_id} "
                f"for {other!r:.40} and {token!r:.40}: download the file again",
                path,
            )


def _absent(path: Path) -> str:
    present = [name for name in _OTHER_FORMATS if (path.parent / name).exists()]
    if not present:
        return f"{path}: there is no such file: download it from where the model comes from"
    return (
        f"{path}: there is no such file, only {', '.join(present)}: write it with transformers: "
        "python -c \"from transformers import AutoTokenizer as A; "
        f"A.from_pretrained('{path.parent}').save_pretrained('{path.parent}')\""
    )


def _optional_object(path: Path) -> dict[str, object]:
    if not path.exists() and broken_link(path) is None:
        return {}
    return read_json_object(path, lambda message: TokenizerError(message, path))


def _named_tokens(folder: Path, config: dict[str, object]) -> dict[str, str]:
    # The map is the older place; where both have a token, the config decides, as in transformers.
    named = {}
    for path in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        source = config if path.name == "tokenizer_config.json" else _optional_object(path)
        for name in NAMED_TOKENS:
            value = source.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if text is None and not isinstance(value, dict):
                continue
            if not isinstance(text, str):
                raise TokenizerError(
                    f"{path}: {name}: expected a text, an object with a text as content, or null, "
                    f"found {value!r}",
                    path,
                )
            named[name] = text
    return named


def _adds(path: Path, config: dict[str, object]) -> dict[str, bool]:
    adds = {}
    for name in ("add_bos_token", "add_eos_token"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise TokenizerError(f"{path}: {name}: expected true or false, found {value!r}", path)
        adds[name] = value
    return adds


def _chat_templates(folder: Path, config: dict[str, object]) -> dict[str, str]:
    # Files of their own replace what tokenizer_config.json has, as in transformers.
    templates = {}
    main = folder / "chat_template.jinja"
    if main.exists() or broken_link(main):
        templates["default"] = _text(main)
    more = folder / "additional_chat_templates"
    for path in sorted(more.glob("*.jinja")) if more.is_dir() else ():
        templates[path.name.removesuffix(".jinja")] = _text(path)
    return templates or _templates_of_config(folder / "tokenizer_config.json", config)


def _templates_of_config(path: Path, config: dict[str, object]) -> dict[str, str]:
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    named: list[tuple[object, object]] = [(None, value)]
    if isinstance(value, dict):
        named = list(value.items())
    elif isinstance(value, list):
        objects = (entry if isinstance(entry, dict) else {} for entry in value)
        named = [(entry.get("name"), entry.get("template")) for entry in objects]
    templates: dict[str, str] = {}
    for name, source in named:
        if not isinstance(name, str) or not isinstance(source, str):
            raise TokenizerError(
                f"{path}: chat_template: expected a text, a list of objects with a name and a "
                f"template, or an object of templates by name, found {str(value)[:60]!r}",
                path,
            )
        templates[name] = source
    return templates


def _text(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TokenizerError(
            f"{path}: expected UTF-8, found byte 0x{byte:02x} at offset {error.start:,}", path
        ) from None
    except CheckpointError as error:
        raise TokenizerError(str(error), path) from error
