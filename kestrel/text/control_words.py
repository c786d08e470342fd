"""Control words in what users write: marked while a chat template is rendered, then told apart.

A control word is the text of any added token but a blank one: ``<|im_end|>``, ``</s>``,
``<tool_call>``. In messages they may be meant as text, or as an attack on the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["ControlWords", "Span", "is_control_word"]

#: Beginning and end of a part of a text, in characters.
Span = tuple[int, int]

# Private-use characters that stand around control words of a message while it is rendered.
_BEGIN, _END = "\U000f0000", "\U000f0001"


def is_control_word(text: str) -> bool:
    """Whether an added token of this text steers the model, and is not just wider blank space."""
    return bool(text) and not text.isspace()


class ControlWords:
    """The control words of a tokenizer, and texts in which they are marked.

    Args:
        added: texts of the added tokens.
    """

    def __init__(self, added: Iterable[str]) -> None:
        words = sorted(filter(is_control_word, added), key=len, reverse=True)
        # A word goes before those it contains; without words nothing matches.
        either = "|".join(map(re.escape, words)) or "(?!)"
        self._word = re.compile(either)
        self._marked = re.compile(f"{_BEGIN}({either}){_END}|[{_BEGIN}{_END}]")

    def mark(self, value: Any) -> Any:
        """A copy of messages, tools or variables, in the strings of which the words are marked.

        Keys are not marked; marks that are there already are dropped, since they could make a
        control word look like text, or the reverse.
        """
        if isinstance(value, str):
            value = value.replace(_BEGIN, "").replace(_END, "")
            return self._word.sub(rf"{_BEGIN}\g<0>{_END}", value)
        if isinstance(value, Mapping):
            return {key: self.mark(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark(item) for item in value]
        return value

    def split(self, rendered: str) -> list[tuple[str, bool]]:
        """The pieces of a text rendered with marks: (text, whether it is a marked word).

        The first is what stands before any mark, empty or not. A template may cut a string between
        the marks: a lone one still separates what is around it, so that the two sides do not join
        to a control word.
        """
        pieces = enumerate(self._marked.split(rendered))
        return [(piece, index % 2 == 1) for index, piece in pieces if piece or index == 0]

    def spans_of_content(self, rendered: str, text: str) -> list[Span] | None:
        """Where in ``text`` control words stand that came from what was marked.

        Args:
            rendered: with marks.
            text: rendered from the same messages without marks.

        None where the template reads its messages so closely that the two have other words.
        """
        stripped, marked = "", []
        for piece, is_marked in self.split(rendered):
            if is_marked:
                marked.append((len(stripped), len(stripped) + len(piece)))
            stripped += piece
        if stripped == text:
            return marked
        # Blanks around a word may differ (Qwen3's template strips them): its place among the words
        # says which it is.
        theirs, ours = list(self._word.finditer(stripped)), list(self._word.finditer(text))
        if [word[0] for word in theirs] != [word[0] for word in ours]:
            return None
        starts = {start for start, _ in marked}
        return [there.span() for word, there in zip(theirs, ours) if word.start() in starts]
