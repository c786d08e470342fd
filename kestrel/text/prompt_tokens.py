"""What the tokens of a prompt are, and where each comes from: for whoever looks into a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kestrel.tokenizer import Tokenizer

__all__ = ["Origin", "PromptToken", "describe", "explain"]


class Origin(str, Enum):
    """Where a token of a prompt comes from.

    TEXT: letters, as the vocabulary has them.
    ADDED: the tokenizer's post-processor put it around the prompt, as BOS.
    TEMPLATE: a control word that the chat template wrote.
    CONTENT: a control word inside a prompt or a message, which became its control token.
    CONTROL: a control token of which that is not known: the prompt was given as ids, or the
        template reads its messages too closely to say.
    """

    TEXT = "text"
    ADDED = "added"
    TEMPLATE = "template"
    CONTENT = "content"
    CONTROL = "control"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt.

    Attributes:
        id: its id.
        token: the entry of the vocabulary, as it is written there; None where there is none.
        text: what it shows by itself in the middle of a text.
        origin: where it comes from.
    """

    id: int
    token: str | None
    text: str
    origin: Origin


def explain(
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    add_special_tokens: bool = True,
    *,
    plain_content: bool = False,
) -> list[PromptToken]:
    """The tokens of a prompt that no chat template made; see ``chat_template.explain_chat``.

    The ids are those that ``Tokenizer.encode`` gives with the same options, or those given. Raises
    as it does.
    """
    if not isinstance(prompt, str):
        return [describe(tokenizer, token_id, Origin.CONTROL) for token_id in prompt]
    spans = tokenizer.encode_with_spans(prompt, add_special_tokens, plain_content=plain_content)
    return [
        describe(tokenizer, token_id, Origin.CONTENT if span is not None else Origin.ADDED)
        for token_id, span in spans
    ]


def describe(tokenizer: Tokenizer, token_id: int, origin: Origin) -> PromptToken:
    """One token; ``origin`` holds if it is a control token or was added, and TEXT if neither."""
    if origin is not Origin.ADDED and not tokenizer.is_control(token_id):
        origin = Origin.TEXT
    text = tokenizer.token_text(token_id)
    return PromptToken(token_id, tokenizer.token(token_id), text, origin)
