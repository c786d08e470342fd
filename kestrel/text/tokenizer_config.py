"""tokenizer_config.json: which tokens have a name, which are special, and what is not followed.

tokenizer.json decides about ids, text and what is put around a prompt, as in transformers (5.24);
what the config says beside it is followed where that can be, and said where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kestrel.errors import TokenizerError

__all__ = ["NAMED_TOKENS", "TokenizerConfig", "read_tokenizer_config"]

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
        named_tokens: texts of the named special tokens that are set.
        adds: ``add_bos_token`` and ``add_eos_token``, where they are set.
        added: ``added_tokens_decoder``: ids by text, and whether the token is special.
        other_tokens: texts under keys that name no single token.
        warnings: sentences about settings that are not followed.
    """

    named_tokens: dict[str, str]
    adds: dict[str, bool]
    added: dict[str, tuple[int, bool]]
    other_tokens: dict[str, list[str]]
    warnings: list[str]

    def special_tokens(self) -> Iterator[str]:
        """Texts of tokens that are special by their name, or because the config says so."""
        yield from self.named_tokens.values()
        yield from (text for text, (_, special) in self.added.items() if special)

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
            f"{name} {text!r} is no token of tokenizer.json: not used"
            for name, text in self.named_tokens.items()
            if id_of(text) is None
        ]
        for key, texts in {**self.other_tokens, "added_tokens_decoder": list(self.added)}.items():
            unknown = [text for text in texts if id_of(text) is None]
            if unknown:
                doubts.append(
                    f"{key}: {len(unknown)} of its tokens are not in tokenizer.json, as "
                    f"{unknown[0]!r}: not used, they are encoded as text"
                )
        for text, (token_id, is_special) in self.added.items():
            if id_of(text) not in (None, token_id):
                doubts.append(
                    f"added_tokens_decoder: {text!r} has id {token_id} there and {id_of(text)} in "
                    "tokenizer.json, which decides"
                )
            elif text in special and not is_special:
                doubts.append(
                    f"added_tokens_decoder: {text!r} is not special there, in tokenizer.json it "
                    "is: its text is left out of answers"
                )
        for flag, wanted in self.adds.items():
            token = self.named_tokens.get(flag.removeprefix("add_"))
            token_id = None if token is None else id_of(token)
            found = token_id in around
            if token_id is not None and wanted != found:
                doubts.append(
                    f"{flag} is {str(wanted).lower()}, the post-processor of tokenizer.json adds "
                    f"{'one' if found else 'none'}: the post-processor decides, as in transformers"
                )
        return [f"tokenizer_config.json: {doubt}" for doubt in doubts]


def read_tokenizer_config(
    path: Path, config: Mapping[str, object], older: Mapping[str, object]
) -> TokenizerConfig:
    """Take it from the content of tokenizer_config.json and of special_tokens_map.json.

    Raises TokenizerError for a value of another type than the key has; names file and key.
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
    # The map is the older place; where both have a token, the config decides, as in transformers.
    named = _named_tokens(path.with_name("special_tokens_map.json"), older)
    named.update(_named_tokens(path, config))
    others = {}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        value = config.get(key)
        if isinstance(value, dict):  # by names of the model's own, which templates may read
            named.update({str(name): _text(path, key, each) for name, each in value.items()})
        elif value is not None:
            listed = value if isinstance(value, list) else [value]
            others[key] = [_text(path, key, each) for each in listed]
    return TokenizerConfig(
        named_tokens=named,
        adds=_adds(path, config),
        added=_added(path, config),
        other_tokens=others,
        warnings=warnings,
    )


def _named_tokens(path: Path, source: Mapping[str, object]) -> dict[str, str]:
    return {
        name: _text(path, name, source[name])
        for name in NAMED_TOKENS
        if source.get(name) is not None
    }


def _text(path: Path, key: str, value: object) -> str:
    text = value.get("content") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TokenizerError(
            f"{path}: {key}: expected a text, an object with a text as content, or null, found "
            f"{value!r:.60}",
            path,
        )
    return text


def _adds(path: Path, config: Mapping[str, object]) -> dict[str, bool]:
    adds = {}
    for name in ("add_bos_token", "add_eos_token"):
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise TokenizerError(f"{path}: {name}: expected true or false, found {value!r}", path)
        adds[name] = value
    return adds


def _added(path: Path, config: Mapping[str, object]) -> dict[str, tuple[int, bool]]:
    key = "added_tokens_decoder"
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
