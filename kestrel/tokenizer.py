"""Text to token ids and back, by the `tokenizers` library, with the facts that a model needs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel.errors import RequestError, TokenizerError
from kestrel.integers import integer, token_ids
from kestrel.text import library
from kestrel.text.control_words import ControlWords, Span, is_control_word
from kestrel.text.incremental import IncrementalDecoder
from kestrel.text.parts import flatten, kinds, state
from kestrel.text.tokenizer_class import follow_prefix_space, legacy_notes
from kestrel.text.tokenizer_files import TokenizerFiles, read_tokenizer_files
from kestrel.text.utf8 import byte_of_char

if TYPE_CHECKING:
    import os

    from tokenizers import Tokenizer as Backend

__all__ = ["Tokenizer"]

_ID_LIMIT = 2**32  # the library's own type


class Tokenizer:
    """A model's tokenizer; immutable, may be shared between threads.

    Attributes:
        folder: where its files are.
        special_tokens: texts of the tokens that decoding leaves out.
        chat_templates: Jinja sources by name; the usual one is called ``default``.
        warnings: what a user should know about these files, one sentence each.
    """

    def __init__(self, folder: Path, files: TokenizerFiles) -> None:
        self.folder = folder
        self._path = files.path
        self._config = config = files.config
        self._backend = backend = files.backend
        # Both are settings of whoever saved the file; a prompt must never be cut or padded.
        backend.no_truncation()
        backend.no_padding()
        library.make_special(backend, config.special_tokens(), config.listed_tokens())
        self._added = {
            token_id: (token.content, token.special)
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self.special_tokens = frozenset(text for text, special in self._added.values() if special)
        self.named_tokens = config.named_tokens
        self.chat_templates = files.chat_templates
        self.warnings = [*config.warnings]
        if dropout := library.without_dropout(backend):
            self.warnings.append(
                f"{self._path}: model.dropout {dropout:g} is not followed: it would encode the "
                "same text differently each time"
            )
        wanted = config.flags.get("add_prefix_space")
        self.warnings += follow_prefix_space(backend, wanted, config.class_name)
        with library.errors(self._path, "cannot encode an empty text"):
            around = self._backend.encode("").ids
        self.warnings += config.doubts(self.token_id, self.special_tokens, around)
        self._without_text: dict[int, tuple[int, ...]] = {}

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Tokenizer:
        """Read tokenizer.json and, where they are, tokenizer_config.json and chat templates.

        Raises TokenizerError, a CheckpointError, that names the file and what is wrong with it.
        """
        return cls(Path(folder), read_tokenizer_files(Path(folder)))

    def encode(
        self, text: str, add_special_tokens: bool = True, *, plain_content: bool = False
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: control words in it, such as ``</s>``, become their tokens, as in the reference.
            add_special_tokens: put BOS in front, or whatever the tokenizer's own post-processor
                says. Text from a chat template has its special tokens already: False.
            plain_content: control words in the text are text like any other; see
                ``kestrel.text.control_words`` for which those are.

        Warns (UserWarning) when two BOS stand in front, and when characters are lost because the
        vocabulary has nothing for them. Raises RequestError when ``text`` is no str or has half a
        surrogate pair, TokenizerError when the library fails.
        """
        self._check_text(text)
        with library.errors(self._path, "cannot encode the prompt"):
            ids = library.encode(self._backend_for(plain_content), text, add_special_tokens)
        bos = self.bos_id
        if bos is not None and ids[:2] == [bos, bos]:
            where = "the text has both"
            if add_special_tokens:
                where = (
                    "the text has one and the tokenizer adds one: leave it out of the text, or "
                    "encode without special ones"
                )
            warnings.warn(
                f"the prompt begins with two {self.token(bos)!r} (id {bos}): {where}", stacklevel=2
            )
        return ids

    def encode_with_spans(
        self, text: str, add_special_tokens: bool = True, *, plain_content: bool = False
    ) -> list[tuple[int, Span | None]]:
        """The ids of ``encode``, each with the part of the text, in characters, that it stands for.

        None with those that the post-processor adds. Raises as ``encode``, warns of nothing.
        """
        self._check_text(text)
        with library.errors(self._path, "cannot encode the prompt"):
            encoding = library.encode_with_offsets(
                self._backend_for(plain_content), text, add_special_tokens
            )
        spans = zip(encoding.ids, encoding.offsets, encoding.special_tokens_mask)
        return [(token_id, None if added else span) for token_id, span, added in spans]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of a whole list of ids, as the library decodes it; ids without text have none.

        For text that comes token by token, see ``kestrel.text.incremental``. Raises RequestError
        when ``ids`` is no list of integers of at least 0.
        """
        listed = token_ids(ids)
        if listed and not (0 <= min(listed) and max(listed) < _ID_LIMIT):
            _check_id(next(each for each in listed if not 0 <= each < _ID_LIMIT))
        with library.errors(self._path, "cannot decode"):
            return self._backend.decode(listed, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """The entry of the vocabulary, as it is written there; None where there is none."""
        return self._backend.id_to_token(_check_id(token_id))

    def token_text(self, token_id: int) -> str:
        """What a token shows by itself in the middle of a text, special ones included.

        Bytes that are no whole character are shown as U+FFFD; an id without text as nothing.
        """
        decoder = IncrementalDecoder(self, self._middle, skip_special_tokens=False)
        return decoder.push(token_id) + decoder.flush()

    def token_id(self, token: str) -> int | None:
        """The id of an entry of the vocabulary, as it is written there; None where absent."""
        return self._backend.token_to_id(token)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, added ones included; a model may have more logits."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def ids_without_text(self, vocab_size: int) -> tuple[int, ...]:
        """The ids below a model's ``vocab_size`` that are no token here, ascending."""
        if vocab_size not in self._without_text:
            entry = self._backend.id_to_token
            self._without_text[vocab_size] = tuple(
                token_id for token_id in range(vocab_size) if entry(token_id) is None
            )
        return self._without_text[vocab_size]

    @property
    def bos_id(self) -> int | None:
        """The id of the tokenizer's bos_token; None without one."""
        return self._named_id("bos_token")

    @property
    def eos_ids(self) -> dict[int, str]:
        """The id of the tokenizer's eos_token, with the words that say where it is from."""
        token_id = self._named_id("eos_token")
        if token_id is None:
            return {}
        source = self._config.sources["eos_token"]
        return {token_id: f"{source} eos_token {self.named_tokens['eos_token']!r}"}

    def is_control(self, token_id: int) -> bool:
        """Whether it is the token of a control word."""
        text, _ = self._added.get(token_id, ("", False))
        return is_control_word(text)

    @property
    def added_tokens(self) -> list[str]:
        """Texts of all added tokens, special or not: what ``encode`` finds in a text as a whole."""
        return [text for text, _ in self._added.values()]

    @cached_property
    def control_words(self) -> ControlWords:
        """Texts of the added tokens that steer a model, to be marked in messages."""
        return ControlWords(self.added_tokens)

    @cached_property
    def decoder_steps(self) -> list[dict[str, Any]] | None:
        """The ``decoder`` of tokenizer.json as a list of steps; None without one."""
        spec = state(self._backend.decoder)
        return None if spec is None else flatten(spec, "decoders")

    def describe(self) -> dict[str, object]:
        """Facts for ``kestrel inspect``, ready for JSON."""
        backend = self._backend
        steps = self.decoder_steps
        return {
            "model": type(backend.model).__name__,
            "vocab_size": self.vocab_size,
            "added_tokens": len(self._added),
            "special_tokens": sorted(self.special_tokens),
            "normalizer": kinds(backend.normalizer, "normalizers"),
            "pre_tokenizer": kinds(backend.pre_tokenizer, "pretokenizers"),
            "post_processor": kinds(backend.post_processor, "processors"),
            "decoder": None if steps is None else [step["type"] for step in steps],
            "named_tokens": {
                name: {"token": token, "id": self.token_id(token)}
                for name, token in self.named_tokens.items()
            },
            "bytes_without_token": [f"0x{byte:02x}" for byte in self._missing_bytes],
            "added_around_a_prompt": [self.token(token_id) for token_id in self.encode("")],
            "chat_templates": sorted(self.chat_templates),
            "warnings": self.warnings + legacy_notes(backend, self._config.class_name),
        }

    @cached_property
    def _middle(self) -> tuple[int, ...]:
        """An id to decode first, so that the next one does not stand at the beginning of a text."""
        for candidate in ("a", "\u2581a", "\u0120a"):
            token_id = self.token_id(candidate)
            if token_id is not None:
                return (token_id,)
        return ()

    def notes_for(self, vocab_size: int) -> list[str]:
        """What a user should know about these files beside a model of ``vocab_size`` logits."""
        if self.vocab_size == vocab_size - len(self.ids_without_text(vocab_size)):
            return []  # all are below; the ids without text are kept, as sampling needs them too
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        beyond = sorted(i for i in vocabulary.values() if i >= vocab_size)
        if not beyond:
            return []
        first = beyond[0]
        return [
            f"{self._path}: {len(beyond)} of its tokens have ids that the model lacks, from "
            f"{first} ({self.token(first)!r}) on: config.json has vocab_size {vocab_size}: a "
            "prompt with one of them is refused"
        ]

    def _named_id(self, name: str) -> int | None:
        token = self.named_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _backend_for(self, plain_content: bool) -> Backend:
        return self._plain_backend if plain_content else self._backend

    @cached_property
    def _plain_backend(self) -> Backend:
        return library.without_control_words(self._backend)

    def _check_text(self, text: object) -> None:
        if not isinstance(text, str):
            raise RequestError(f"prompt: expected a text (str), found {type(text).__name__}")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(
                "prompt: expected Unicode text, found half a surrogate pair "
                f"(U+{ord(text[error.start]):04X}) at character {error.start}"
            ) from None
        lost = len(data) - len(data.translate(None, self._missing_bytes))
        if lost:
            warnings.warn(
                f"the vocabulary has no token for {lost} of the {len(data)} bytes of the prompt: "
                "the model does not see them",
                stacklevel=3,
            )

    @cached_property
    def _missing_bytes(self) -> bytes:
        """Bytes that the library drops from a text in silence, because no token stands for them.

        It happens to byte-level vocabularies that were made from the bytes that their training text
        had, and that have no unknown token.
        """
        parts = kinds(self._backend.pre_tokenizer, "pretokenizers") or []
        if "ByteLevel" not in parts or getattr(self._backend.model, "unk_token", None) is not None:
            return b""
        table = byte_of_char()
        return bytes(sorted(table[char] for char in table if self.token_id(char) is None))


def _check_id(token_id: object) -> int:
    return integer(token_id, "token id", 0, _ID_LIMIT - 1)
