"""A conversation with a model, each turn of which computes new tokens only.

Every turn renders the whole conversation with the chat template; the engine finds the positions it
has computed before in the cache, by their tokens. So what the model sees is what the template says,
and nothing of the history has to be kept in step by hand.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kestrel.engine.request import Finished
from kestrel.errors import RequestError
from kestrel.text.chat_template import encode_chat

if TYPE_CHECKING:
    from kestrel.model import Model
    from kestrel.sampling.params import SamplingParams

__all__ = ["Conversation"]


class Conversation:
    """Messages, and the model that answers them.

    Attributes:
        messages: objects with role and content; a system message, if any, is the first.
        last: the Finished event of the last answer and its seconds to the first token, or None.
    """

    def __init__(
        self,
        model: "Model",
        params: "SamplingParams",
        template: str,
        plain_content: bool = False,
        system: str | None = None,
    ) -> None:
        self._model = model
        self._params = params
        self._template = template
        self._plain_content = plain_content
        self.messages: list[dict[str, str]] = []
        self.last: tuple[Finished, float | None] | None = None
        if system is not None:
            self.system = system

    @property
    def system(self) -> str | None:
        """The system message."""
        first = self.messages[0] if self.messages else {}
        return first["content"] if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str) -> None:
        rest = self.messages[self.system is not None :]
        self.messages = [{"role": "system", "content": text}, *rest]

    def reset(self) -> None:
        """Forget all messages but the system message."""
        self.messages = self.messages[: self.system is not None]

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of the conversation with one more message of the user.

        Raises RequestError when the template refuses it, or when no token would fit behind it.
        """
        ids = encode_chat(
            self._model.tokenizer,
            [*self.messages, {"role": "user", "content": text}],
            template=self._template,
            plain_content=self._plain_content,
        )
        if len(ids) >= self._model.context_limit:
            raise RequestError(
                f"the conversation has {len(ids)} tokens with this message, the context limit is "
                f"{self._model.context_limit}: the message was not sent and nothing was cut; "
                "/reset starts anew"
            )
        return ids

    def answer(self, text: str) -> Iterator[str]:
        """Yield the answer's text as it comes, and add both messages to the conversation.

        Closing the generator early, or an interrupt, keeps what came so far. An answer of which
        nothing came leaves the conversation as it was. Raises as ``prompt_ids`` and ``stream``.
        """
        ids = self.prompt_ids(text)
        pieces: list[str] = []
        first, end = None, None
        started = time.perf_counter()
        try:
            with contextlib.closing(self._model.stream(ids, self._params)) as events:
                for event in events:
                    if isinstance(event, Finished):
                        end = event
                        continue
                    first = first or time.perf_counter() - started
                    pieces.append(event.text)
                    yield event.text
        finally:
            if end is not None or any(pieces):
                self.messages.append({"role": "user", "content": text})
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            self.last = None if end is None else (end, first)
