"""Decode token by token, so that the pieces join to the text of the whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kestrel.text.decoder_steps import Health, build_steps

if TYPE_CHECKING:
    from kestrel.tokenizer import Tokenizer

__all__ = ["IncrementalDecoder"]


class IncrementalDecoder:
    """Turns the ids of an answer into pieces of text, one call for each id.

    The pieces, with that of ``flush``, join to what the answer adds to the text of the prompt when
    both are decoded together; without a prompt, to ``tokenizer.decode(ids)``. No piece splits a
    character. Among tokens that stand for single bytes (SentencePiece's byte fallback) a run comes
    out when it has ended, because an invalid byte would change all of it.

    Args:
        tokenizer: whose decoder it repeats.
        prompt_ids: what the answer continues: decides its first space, and may have begun a
            character that the answer completes.
        skip_special_tokens: leave special tokens out of the text.

    Raises:
        TokenizerError: the tokenizer's decoder has a step that is not supported.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Iterable[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = tokenizer.special_tokens if skip_special_tokens else frozenset()
        self._health = Health()
        self._steps = build_steps(tokenizer.decoder_steps, self._health)
        for token_id in prompt_ids:
            self.push(token_id)
        self._health.invalid = False

    @property
    def ended_early(self) -> bool:
        """After ``flush``: the last character lacked some of its bytes; U+FFFD stands for it."""
        return self._health.ended_early

    @property
    def invalid(self) -> bool:
        """Some bytes so far could belong to no character; U+FFFD stands for them."""
        return self._health.invalid

    def push(self, token_id: int) -> str:
        """The text that this token settles; may be empty. An id without text has none."""
        token = self._tokenizer.token(token_id)
        if token is None or token in self._skip:
            return ""
        return self._run([token], 0)

    def flush(self) -> str:
        """The rest, once, at the end of the answer."""
        return "".join(
            self._run(step.flush(), index + 1) for index, step in enumerate(self._steps)
        )

    def _run(self, tokens: list[str], first: int) -> str:
        for step in self._steps[first:]:
            tokens = [piece for token in tokens for piece in step.push(token)]
        return "".join(tokens)
