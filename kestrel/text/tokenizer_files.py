"""Read the files of a tokenizer: tokenizer.json, tokenizer_config.json and chat templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel.checkpoint.diagnose import HEAD_BYTES, describe
from kestrel.checkpoint.files import broken_link, read_json_object, read_small
from kestrel.checkpoint.strict_json import JsonError, check_keys
from kestrel.errors import CheckpointError, TokenizerError
from kestrel.text import library
from kestrel.text.parts import kinds
from kestrel.text.tokenizer_class import class_of
from kestrel.text.tokenizer_config import TokenizerConfig, read_tokenizer_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

__all__ = ["TokenizerFiles", "read_tokenizer_files"]

_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files say.

    Attributes:
        path: of tokenizer.json.
        backend: what the library makes of it.
        config: tokenizer_config.json, empty where there is none.
        chat_templates: Jinja sources by name; a model with one template has it as ``default``.
    """

    path: Path
    backend: Backend
    config: TokenizerConfig
    chat_templates: dict[str, str]


def read_tokenizer_files(folder: Path) -> TokenizerFiles:
    """Read them. Raises TokenizerError when tokenizer.json is absent or another file is broken."""
    path = folder / "tokenizer.json"
    config_path = folder / "tokenizer_config.json"
    config = _optional_object(config_path)
    older: dict[str, object] = {}
    added: dict[str, object] = {}
    if "added_tokens_decoder" not in config:  # beside it transformers passes over both files
        older = _optional_object(folder / "special_tokens_map.json")
        added = _optional_object(folder / "added_tokens.json")
    backend = _read(path)
    _check_added_tokens(folder / "added_tokens.json", added, backend)
    model = _optional_object(folder / "config.json")
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    is_byte_level = "ByteLevel" in (kinds(backend.pre_tokenizer, "pretokenizers") or [])
    class_name = class_of(name, model.get("model_type"), is_byte_level)
    return TokenizerFiles(
        path=path,
        backend=backend,
        config=read_tokenizer_config(config_path, config, older, class_name),
        chat_templates=_chat_templates(folder, config),
    )


def _read(path: Path) -> Backend:
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
    from tokenizers import Tokenizer as Backend  # takes long to import, so only here

    with library.errors(path, "cannot be read as a tokenizer"):
        return Backend.from_buffer(data)


def _check_added_tokens(path: Path, older: dict[str, object], backend: Backend) -> None:
    """Refuse what added_tokens.json has beside tokenizer.json: transformers adds it."""
    ids = {token.content: each for each, token in backend.get_added_tokens_decoder().items()}
    for text, token_id in older.items():
        if ids.get(text) != token_id or isinstance(token_id, bool):
            raise TokenizerError(
                f"{path}: expected tokens that tokenizer.json adds too, under the same ids, found "
                f"{text!r:.60} with {token_id!r:.40}, there {ids.get(text)!r}: "
                f"{_rewrite(path.parent)}, or remove the file to go without",
                path,
            )


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
    return f"{path}: there is no such file, only {', '.join(present)}: {_rewrite(path.parent)}"


def _rewrite(folder: Path) -> str:
    return (
        "write it with transformers: python -c \"from transformers import AutoTokenizer as A; "
        f"A.from_pretrained('{folder}').save_pretrained('{folder}')\""
    )


def _optional_object(path: Path) -> dict[str, object]:
    if not path.exists() and broken_link(path) is None:
        return {}
    return read_json_object(path, lambda message: TokenizerError(message, path))


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
        text = read_small(path).decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise TokenizerError(
            f"{path}: expected UTF-8, found byte 0x{byte:02x} at offset {error.start:,}", path
        ) from None
    except CheckpointError as error:
        raise TokenizerError(str(error), path) from error
    if not text:
        raise TokenizerError(f"{path}: {describe(b'', 0)}", path)
    return text
