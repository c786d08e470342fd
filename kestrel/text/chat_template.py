"""Messages to a prompt: a model's chat template, and the token ids of what it gives.

As in transformers' ``apply_chat_template`` the result is encoded without adding special tokens: the
template writes them itself. By default control words that a message contains become control tokens,
as there; ``plain_content`` encodes them as the text they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kestrel.errors import RequestError, TokenizerError
from kestrel.text.control_words import Span
from kestrel.text.prompt_tokens import Origin, PromptToken, describe

if TYPE_CHECKING:
    from kestrel.tokenizer import Tokenizer

__all__ = [
    "Messages", "check_template", "choose_template", "encode_chat", "explain_chat", "render",
]  # fmt: skip

Messages = Sequence[Mapping[str, Any]]
_REASONING = ("reasoning_content", "thinking", "reasoning")


def render(
    template: str,
    messages: Messages,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> str:
    """The text that a chat template makes of messages.

    Args:
        template: Jinja source.
        messages: objects with ``role`` and ``content`` and whatever else the template reads; keys
            whose value is None are left out.
        add_generation_prompt: end with the header of the assistant's answer.
        tools: JSON schemas of functions that the model may call.
        extra: other variables of the template, such as ``bos_token`` or ``enable_thinking``.

    Raises:
        TokenizerError: the template is no Jinja template, or jinja2 is missing.
        RequestError: the template refused the messages, in its own words; or they are no messages.
    """
    compiled = _compile(template)
    variables = _plain(extra, "template variables")
    variables.setdefault("documents", None)
    variables.update(
        messages=_messages(messages),
        tools=None if tools is None else _plain(list(tools), "tools"),
        add_generation_prompt=add_generation_prompt,
    )
    try:
        return compiled(variables)
    except Exception as error:  # whatever a template written by a stranger runs into
        words = str(error) or type(error).__name__
        raise RequestError(f"the chat template refused the messages: {words}") from error


def check_template(source: str, where: object) -> None:
    """Raises TokenizerError, which names the file or folder ``where``, if it is no template."""
    try:
        _compile(source)
    except TokenizerError as error:
        raise TokenizerError(f"{where}: {error}", where) from error


def choose_template(tokenizer: Tokenizer, name: str | None = None, *, tools: bool = False) -> str:
    """The source of a model's chat template.

    Without a name ``tool_use`` where there are tools and such a template, else ``default``. Raises
    RequestError when the model has none of that name; lists those it has.
    """
    templates = tokenizer.chat_templates
    if name is None:
        name = "tool_use" if tools and "tool_use" in templates else "default"
    if name in templates:
        return templates[name]
    if not templates:
        raise RequestError(
            f"{tokenizer.folder}: this model has no chat template (chat_template.jinja, or one in "
            "tokenizer_config.json): give one with --chat-template FILE (template=... in Python), "
            f'or let it continue a text: kestrel --model {tokenizer.folder} "Once upon a time"'
        )
    raise RequestError(
        f"{tokenizer.folder}: expected one of the chat templates {', '.join(sorted(templates))}, "
        f"found {name!r}"
    )


def encode_chat(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    plain_content: bool = False,
    **extra: Any,
) -> list[int]:
    """Token ids of messages, as ``render`` writes them, special tokens only where it has them.

    Args:
        template: Jinja source; by default the model's own.
        plain_content: control words in messages, tools and ``extra`` are encoded as ordinary text,
            so that only the template itself writes control tokens: the ids of transformers'
            ``sanitize_control_tokens``, for every added token but blanks. Only whole words: a
            template that joins strings of the messages into one must check them itself, and one
            that looks for blanks beside a word (Qwen3's, beside ``</think>``) may find none.

    Raises what ``render``, ``choose_template`` and ``Tokenizer.encode`` raise.
    """
    source = choose_template(tokenizer, tools=tools is not None) if template is None else template
    chat = _Chat(source, messages, add_generation_prompt, tools, extra)
    if plain_content:
        return _encode_marked(tokenizer, chat.render(tokenizer, marked=True))
    return tokenizer.encode(chat.render(tokenizer), add_special_tokens=False)


def explain_chat(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    plain_content: bool = False,
    **extra: Any,
) -> list[PromptToken]:
    """The tokens of ``encode_chat``, and which of them came from control words in the messages.

    Arguments and errors are those of ``encode_chat``.
    """
    source = choose_template(tokenizer, tools=tools is not None) if template is None else template
    chat = _Chat(source, messages, add_generation_prompt, tools, extra)
    if plain_content:
        ids = _encode_marked(tokenizer, chat.render(tokenizer, marked=True))
        return [describe(tokenizer, token_id, Origin.TEMPLATE) for token_id in ids]
    text = chat.render(tokenizer)
    try:
        marked = chat.render(tokenizer, marked=True)
    except RequestError:  # the template took offence at the marks alone
        content = None
    else:
        content = tokenizer.control_words.spans_of_content(marked, text)
    places = None if content is None else {i for start, end in content for i in range(start, end)}
    spans = tokenizer.encode_with_spans(text, add_special_tokens=False)
    return [describe(tokenizer, each, _origin(span, places)) for each, span in spans]


def _origin(span: Span, places_of_content: set[int] | None) -> Origin:
    """Of a control token that stands for ``span``."""
    if places_of_content is None:
        return Origin.CONTROL
    within = not places_of_content.isdisjoint(range(*span))
    return Origin.CONTENT if within else Origin.TEMPLATE


@dataclass(frozen=True)
class _Chat:
    """All that a template is given."""

    source: str
    messages: Messages
    add_generation_prompt: bool
    tools: Sequence[Mapping[str, Any]] | None
    extra: Mapping[str, Any]

    def render(self, tokenizer: Tokenizer, marked: bool = False) -> str:
        messages, tools, extra = self.messages, self.tools, self.extra
        if marked:
            messages, tools, extra = map(tokenizer.control_words.mark, (messages, tools, extra))
        variables = {**tokenizer.named_tokens, **extra}
        return render(self.source, messages, self.add_generation_prompt, tools, **variables)


def _compile(source: str) -> Callable[[Mapping[str, Any]], str]:
    try:
        import jinja2

        from kestrel.text.jinja_environment import compile_template, render_template
    except ImportError as error:
        raise TokenizerError(f"chat templates need the package jinja2: {error}") from error
    try:
        return partial(render_template, compile_template(source))
    except jinja2.TemplateSyntaxError as error:
        raise TokenizerError(
            f"chat_template: not a Jinja template: {error.message} at line {error.lineno}"
        ) from error
    except RecursionError as error:
        raise TokenizerError("chat_template: it is nested too deeply") from error


def _messages(messages: object) -> list[dict[str, Any]]:
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError(f"messages: expected a list of at least one message, found {messages!r}")
    result = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{index}]: expected an object with a role, found {message!r}"
            )
        kept = {key: value for key, value in message.items() if value is not None}
        plain = _plain(kept, f"messages[{index}]")
        reasoning = next((plain[key] for key in _REASONING if key in plain), None)
        if reasoning is not None:  # the same under the names that different templates read
            plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
        result.append(plain)
    return result


def _plain(value: Any, where: str) -> Any:
    """A copy made of JSON's own types, so that a template reaches no method of anything else."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise RequestError(f"{where}: expected what JSON can hold, found {type(value).__name__}")


def _encode_marked(tokenizer: Tokenizer, rendered: str) -> list[int]:
    """Ids of a text in which the control words to be encoded as text are marked.

    As transformers' ``encode_marked_chat`` (5.24, utils/chat_template_utils.py).
    """
    (first, _), *others = tokenizer.control_words.split(rendered)
    ids = tokenizer.encode(first, add_special_tokens=False)
    for piece, is_text in others:
        piece_ids = _encode_inside(tokenizer, piece, is_text)
        if is_text and tokenizer.token_id(piece) in piece_ids:
            raise RequestError(
                f"messages: {piece!r} cannot be encoded as plain text: the vocabulary has it as a "
                "word too"
            )
        ids += piece_ids
    return ids


def _encode_inside(tokenizer: Tokenizer, piece: str, is_text: bool) -> list[int]:
    """Ids of a piece from within a text: without the blank that SentencePiece puts in front."""

    def encode(text: str, plain_content: bool = is_text) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False, plain_content=plain_content)

    newline = encode("\n", plain_content=False)
    ids = encode("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encode(piece)
