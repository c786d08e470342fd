"""Calls of the `tokenizers` library: errors that name the file, and long texts that Ctrl-C ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from kestrel.errors import TokenizerError
from kestrel.text.control_words import is_control_word

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

__all__ = [
    "encode", "encode_with_offsets", "errors", "make_special", "without_control_words",
    "without_dropout",
]  # fmt: skip

#: Texts above this many characters are encoded in a thread; a shorter one takes a moment.
_LONG = 64 * 2**10


@contextmanager
def errors(path: Path, what: str) -> Iterator[None]:
    """Whatever the library raises becomes a TokenizerError; Ctrl-C stays what it is.

    A panic in Rust has printed its own line on standard error by then: the library offers no way to
    keep it, and to redirect the stream would take it from other threads too.
    """
    try:
        yield
    except BaseException as error:
        # A panic derives from BaseException alone, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{path}: {what}: {error}", path) from error


def encode(backend: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Token ids of a text of any length."""
    if len(text) <= _LONG:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    batch = backend.encode_batch_fast
    return _in_thread(lambda: batch([text], add_special_tokens=add_special_tokens)[0].ids)


def encode_with_offsets(backend: Tokenizer, text: str, add_special_tokens: bool) -> Encoding:
    """As ``encode``, with where in the text, in characters, each token is from."""
    batch = backend.encode_batch
    return _in_thread(lambda: batch([text], add_special_tokens=add_special_tokens)[0])


def make_special(backend: Tokenizer, named: Iterable[str], others: Iterable[str]) -> None:
    """See that texts which are tokens are found as a whole and are special, as transformers does.

    A text that is no token gets none: it would have an id that no model has learned. ``others``
    are special too, but where they are added tokens already: those stay what they are.
    """
    added = {t.content: t.special for t in backend.get_added_tokens_decoder().values()}
    missing = [text for text in named if not added.get(text)]
    missing += [text for text in others if text not in added]
    if known := [text for text in missing if backend.token_to_id(text) is not None]:
        backend.add_special_tokens(known)


def without_dropout(backend: Tokenizer) -> float:
    """Switch off what makes encoding random, a setting of training; returns what it was."""
    dropout = getattr(backend.model, "dropout", None)
    if dropout:
        backend.model.dropout = None
    return dropout or 0.0


def without_control_words(backend: Tokenizer) -> Tokenizer:
    """The same tokenizer, its model shared, for which control words are text like any other.

    The library's ``encode_special_tokens`` does so for the added tokens that are marked special;
    here all are, but blanks: those are text in any case.
    """
    from tokenizers import AddedToken

    plain = type(backend)(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if getattr(backend, part) is not None:
            setattr(plain, part, getattr(backend, part))
    added = backend.get_added_tokens_decoder()
    # In the order of their ids, by which the library numbers those that the model does not know.
    plain.add_tokens(
        [
            AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=is_control_word(token.content),
            )
            for _, token in sorted(added.items())
        ]
    )
    plain.encode_special_tokens = True
    return plain


def _in_thread(call: Callable[[], Any]) -> Any:
    """The result of ``call``, for which this thread waits where a signal can reach it.

    A single text would be encoded without letting go of the interpreter: seconds in which neither
    Ctrl-C nor another thread gets a turn. A batch lets go of it. After an interrupt the library
    goes on to the end, by itself, since nothing can stop it.
    """
    outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # whatever it is, it belongs to the caller
            outcome.put((None, error))

    threading.Thread(target=work, name="kestrel-tokenizer", daemon=True).start()
    result, error = outcome.get()
    if error is not None:
        raise error
    return result
