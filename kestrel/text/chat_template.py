"""Messages to a prompt: a model's chat template, and the token ids of what it gives.

As in transformers' ``apply_chat_template`` the result is encoded without adding special tokens: the
template writes them itself. By default control words that a message contains become control tokens,
as there; ``plain_content`` encodes them as the text they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kestrel.errors import RequestError, TokenizerError

if TYPE_CHECKING:
    from kestrel.tokenizer import Tokenizer

__all__ = ["choose_template", "encode_chat", "render"]

# Private-use characters that stand around control words of a message while it is rendered.
_BEGIN, _END = "\U000f0000", "\U000f0001"
_REASONING = ("reasoning_content", "thinking", "reasoning")


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
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
        return compiled.render(variables)
    except Exception as error:  # whatever a template written by a stranger runs into
        raise RequestError(f"the chat template refused the messages: {error}") from error


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
            f"{tokenizer.folder}: this model has no chat template (tokenizer_config.json, "
            "chat_template.jinja): it continues text, give it a prompt instead of messages"
        )
    raise RequestError(
        f"{tokenizer.folder}: expected one of the chat templates {', '.join(sorted(templates))}, "
        f"found {name!r}"
    )


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
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
        plain_content: control words in messages, tools and ``extra`` (``<|im_end|>`` and its like,
            all added tokens but blanks) are encoded as ordinary text, so that only the template
            itself writes control tokens. Only whole control words: a template that joins strings
            of the messages into one must check them itself.

    Raises what ``render``, ``choose_template`` and ``Tokenizer.encode`` raise.
    """
    source = template or choose_template(tokenizer, tools=tools is not None)
    if plain_content:
        words = [word for word in tokenizer.added_tokens if not word.isspace()]
        words.sort(key=len, reverse=True)  # a word goes before those it contains
        pattern = re.compile("|".join(map(re.escape, words)) or "(?!)")
        messages, tools, extra = (_mark(part, pattern) for part in (messages, tools, extra))
    variables = {**tokenizer.named_tokens, **extra}
    text = render(source, messages, add_generation_prompt, tools, **variables)
    if plain_content:
        return _encode_marked(tokenizer, text, pattern)
    return tokenizer.encode(text, add_special_tokens=False)


def _compile(source: str) -> Any:
    try:
        import jinja2

        from kestrel.text.jinja_environment import compile_template
    except ImportError as error:
        raise TokenizerError(f"chat templates need the package jinja2: {error}") from error
    try:
        return compile_template(source)
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


def _mark(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        # Marks that are there already could make a control word look like text, or the reverse.
        value = value.replace(_BEGIN, "").replace(_END, "")
        return pattern.sub(rf"{_BEGIN}\g<0>{_END}", value)
    if isinstance(value, Mapping):
        return {key: _mark(item, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mark(item, pattern) for item in value]
    return value


def _encode_marked(tokenizer: Tokenizer, text: str, pattern: re.Pattern[str]) -> list[int]:
    """Ids of a rendered text, marked control words as text; as transformers' encode_marked_chat."""
    # A template may cut a string between the marks: a lone mark still separates what is around it.
    marked = re.compile(f"{_BEGIN}({pattern.pattern}){_END}|[{_BEGIN}{_END}]")
    pieces = marked.split(text)
    ids = tokenizer.encode(pieces[0] or "", add_special_tokens=False)
    for index, piece in enumerate(pieces[1:], 1):
        if not piece:
            continue
        is_text = index % 2 == 1
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

    def encode(text: str) -> list[int]:
        if is_text:
            return tokenizer.encode_plain(text)
        return tokenizer.encode(text, add_special_tokens=False)

    newline = tokenizer.encode("\n", add_special_tokens=False)
    ids = encode("\n" + piece)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encode(piece)
