"""tokenizer_config.json: which tokens have a name, which are special, and what is not followed.

tokenizer.json decides about ids, text and what is put around a prompt, as in transformers (5.24);
what the config says beside it is followed where that can be, and said where it cannot. The older
special_tokens_map.json is read as there: where the config has no added_tokens_decoder, and then its
keys go before the config's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kestrel.errors import TokenizerError
from kestrel.text.tokenizer_class import DEFAULT_TOKENS

__all__ = ["NAMED_TOKENS", "TokenizerConfig", "read_tokenizer_config"]

_FILE = "tokenizer_config.json"
_ADDED = "added_tokens_decoder"
_EXTRA = "extra_special_tokens"
_ADDITIONAL = "additional_special_tokens"  # its older name

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


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """What it says.

    Attributes:
        named_tokens: texts of the special tokens that have a name, the class's own among them.
        sources: the file, or the class, that each of ``named_tokens`` is from.
        flags: ``add_bos_token``, ``add_eos_token`` and ``add_prefix_space``, where they are set.
        added: ``added_tokens_decoder``: ids by text, and whether the token is special.
        other_tokens: texts of special tokens without a name, by the file and key that list them.
        class_name: the class that transformers takes; None for one without texts of its own.
        warnings: sentences about settings that are not followed.
    """

    named_tokens: dict[str, str]
    sources: dict[str, str]
    flags: dict[str, bool]
    added: dict[str, tuple[int, bool]]
    other_tokens: dict[str, list[str]]
    class_name: str | None
    warnings: list[str]

    def special_tokens(self) -> Iterator[str]:
        """Texts of tokens that are special by their name, or because the config says so."""
        yield from self.named_tokens.values()
        yield from (text for text, (_, special) in self.added.items() if special)

    def listed_tokens(self) -> Iterator[str]:
        """Texts of special tokens without a name."""
        for texts in self.other_tokens.values():
            yield from texts

    def doubts(
        self,
        id_of: Callable[[str], int | None],
        special: frozenset[str],
        around: list[int],
    ) -> list[str]:
        """Sentences about what the config says and tokenizer.json does not do.

        Args:
            id_of: the id of a token of tokenizer.json; None where there is none.
            special: texts of the special tokens.
            around: the ids that the post-processor of tokenizer.json puts around a prompt.
        """
        doubts = [
            f"{self.sources[name]}: {name} {text!r} is no token of tokenizer.json: not used"
            for name, text in self.named_tokens.items()
            if id_of(text) is None
        ]
        decoder = f"{_FILE}: {_ADDED}"
        for key, texts in {**self.other_tokens, decoder: list(self.added)}.items():
            unknown = [text for text in texts if id_of(text) is None]
            if unknown:
                doubts.append(
                    f"{key}: {len(unknown)} of its tokens are not in tokenizer.json, as "
                    f"{unknown[0]!r}: not used, they are encoded as text"
                )
        for text, (token_id, is_special) in self.added.items():
            if id_of(text) not in (None, token_id):
                doubts.append(
                    f"{decoder}: {text!r} has id {token_id} there and {id_of(text)} in "
                    "tokenizer.json, which decides"
                )
            elif text in special and not is_special:
                doubts.append(
                    f"{decoder}: {text!r} is not special there, in tokenizer.json it "
                    "is: its text is left out of answers"
                )
        for flag in ("add_bos_token", "add_eos_token"):
            wanted = self.flags.get(flag)
            token = self.named_tokens.get(flag.removeprefix("add_"))
            token_id = None if token is None else id_of(token)
            found = token_id in around
            if None not in (wanted, token_id) and wanted != found:
                doubts.append(
                    f"{_FILE}: {flag} is {str(wanted).lower()}, the post-processor of "
                    f"tokenizer.json adds {'one' if found else 'none'}: the post-processor "
                    "decides, as in transformers"
                )
        return doubts


def read_tokenizer_config(
    path: Path,
    config: Mapping[str, object],
    older: Mapping[str, object],
    class_name: str | None = None,
) -> TokenizerConfig:
    """Take it from the content of tokenizer_config.json and of special_tokens_map.json.

    ``class_name`` is that of TokenizerConfig. Raises TokenizerError for a value of another type
    than the key has; names file and key.
    """
    warnings = []
    if config.get("clean_up_tokenization_spaces"):
        warnings.append(
            f"{path}: clean_up_tokenization_spaces is not followed: text is decoded as "
            "tokenizer.json says, with every blank"
        )
    if config.get("split_special_tokens"):
        warnings.append(
            f"{path}: split_special_tokens is not followed: control words become control tokens "
            "(plain_content encodes them as text)"
        )
    if _ADDED in config:
        older = {}
    older_path = path.with_name("special_tokens_map.json")
    named = dict(DEFAULT_TOKENS.get(class_name or "", {}))
    sources = dict.fromkeys(named, f"the default of {class_name}")
    for file, source in ((path, config), (older_path, older)):
        for name in named.keys() & source.keys():
            del named[name], sources[name]  # null says that there is none
        found = _named_tokens(file, source)
        named.update(found)
        sources.update(dict.fromkeys(found, file.name))
    return TokenizerConfig(
        named_tokens=named,
        sources=sources,
        flags=_flags(path, config),
        added=_added(path, config),
        other_tokens=_other_tokens(path, config, older_path, older),
        class_name=class_name,
        warnings=warnings,
    )


def _named_tokens(path: Path, source: Mapping[str, object]) -> dict[str, str]:
    """Those of transformers, and those of the model's own, which templates may read too."""
    named = {}
    for name, value in source.items():
        own = name.endswith("_token") and isinstance(value, (str, dict))
        if value is not None and (own or name in NAMED_TOKENS):
            named[name] = _text(path, name, value)
    more = source.get(_EXTRA)
    if isinstance(more, dict):
        named.update({str(name): _text(path, _EXTRA, each) for name, each in more.items()})
    return named


def _other_tokens(
    path: Path, config: Mapping[str, object], older_path: Path, older: Mapping[str, object]
) -> dict[str, list[str]]:
    """Special tokens without a name, by key: the old key counts where the new one has no list."""
    lists = {}
    for file, source in ((path, config), (older_path, older)):
        for key in (_EXTRA, _ADDITIONAL):
            value = source.get(key)
            if not value or isinstance(value, dict) or (key == _ADDITIONAL and lists):
                continue
            listed = value if isinstance(value, list) else [value]
            lists[f"{file.name}: {key}"] = [_text(file, key, each) for each in listed]
    return lists


def _text(path: Path, key: str, value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TokenizerError(
            f"{path}: {key}: expected a text, an object with a text as content, or null, found "
            f"{value!r:.60}",
            path,
        )
    return text


def _flags(path: Path, config: Mapping[str, object]) -> dict[str, bool]:
    flags = {}
    for name in ("add_bos_token", "add_eos_token", "add_prefix_space"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise TokenizerError(f"{path}: {name}: expected true or false, found {value!r}", path)
        flags[name] = value
    return flags


def _added(path: Path, config: Mapping[str, object]) -> dict[str, tuple[int, bool]]:
    key = _ADDED
    value = config.get(key) or {}
    added = {}
    for token_id, token in value.items() if isinstance(value, dict) else [(None, value)]:
        is_id = isinstance(token_id, str) and token_id.isascii() and token_id.isdecimal()
        if not is_id or not isinstance(token, dict):
            raise TokenizerError(
                f"{path}: {key}: expected an object of tokens by id, found {value!r:.60}", path
            )
        added[_text(path, key, token)] = (int(token_id), token.get("special") is True)
    return added
