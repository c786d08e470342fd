"""``kestrel generate``: a prompt and its continuation, token by token as they come."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from kestrel.cli.common import (
    describe_load,
    describe_model,
    describe_params,
    figures,
    given_params,
    load_model,
    note,
    params_for,
    print_json,
    visible,
)
from kestrel.cli.inputs import read_file, read_stdin
from kestrel.engine.request import Finished, Token
from kestrel.errors import RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from kestrel.engine.request import Event
    from kestrel.model import Model
    from kestrel.sampling.params import SamplingParams

__all__ = ["format_figures", "run"]

_NO_PROMPT = (
    "no prompt: give the text to continue as one argument, '-' to read it from standard input, "
    "--file FILE or --ids IDS"
)


def run(args: "argparse.Namespace") -> int:
    """Generate as ``args`` (from kestrel.cli.parser) asks; 0."""
    given = given_params(args)
    prompt = read_prompt(args)
    model = load_model(args)
    params = params_for(model, given)
    if not args.quiet:
        note(describe_load(model))
        note(describe_model(model))
        note(describe_params(model, params, given))
    ids = model.encode(prompt, plain_content=args.plain_content)
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode(ids)
    write = _Silent() if args.json else _Rows() if args.logprobs is not None else _Story()
    answer = _Answer()
    started = time.perf_counter()
    events = model.stream(ids, params)  # refuses a wrong prompt here, before anything is written
    if not args.no_echo:
        write.prompt(text)
    try:
        answer.follow(events, started, write)
    finally:
        write.end()
    end = answer.end
    measured = figures(end.usage, answer.first_token_seconds)
    if args.json:
        print_json(_report(model, params, text, ids, answer, measured))
    if not args.quiet:
        note(format_figures(measured, end))
    return 0


def read_prompt(args: "argparse.Namespace") -> "str | list[int]":
    """The prompt as text or ids. Raises RequestError without one or when it is not UTF-8."""
    if args.ids is not None:
        if args.plain_content:
            raise RequestError("--plain-content: expected a prompt as text, found --ids")
        return args.ids
    if args.file is not None:
        if args.file == "-":
            return _without_line_end(read_stdin())
        return _without_line_end(read_file(args.file, "--file"))
    if args.prompt is None:
        raise RequestError(_NO_PROMPT)
    if args.prompt == "-":
        return _without_line_end(read_stdin())
    return args.prompt


def _without_line_end(text: str) -> str:
    # As the shell's $(...): the line end of the last line is no part of the text.
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


class _Answer:
    """What came of one prompt."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.first_token_seconds: float | None = None
        self.end: Finished | None = None

    def follow(self, events: "Iterator[Event]", started: float, write: "_Silent") -> None:
        """Write the tokens as they come; ``started`` is when the prompt was handed over."""
        for event in events:
            if isinstance(event, Finished):
                self.end = event
                continue
            if self.first_token_seconds is None:
                self.first_token_seconds = time.perf_counter() - started
            self.tokens.append(event)
            write.token(event)


class _Silent:
    """Writes nothing: the JSON object says all."""

    def prompt(self, text: str) -> None:
        """The text that is continued."""

    def token(self, token: Token) -> None:
        """One more token."""

    def end(self) -> None:
        """No more tokens come, whatever the reason."""


class _Story(_Silent):
    """The text as it comes, the prompt in bold on a terminal."""

    def __init__(self) -> None:
        self._at_line_start = True
        dumb = os.environ.get("TERM", "dumb") == "dumb" or "NO_COLOR" in os.environ
        self._bold = sys.stdout.isatty() and not dumb

    def prompt(self, text: str) -> None:
        text = visible(text)
        self._write(f"\x1b[1m{text}\x1b[0m" if self._bold and text else text)

    def token(self, token: Token) -> None:
        self._write(visible(token.text))

    def end(self) -> None:
        if not self._at_line_start:
            self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")


class _Rows(_Silent):
    """One line a token: id, log-probability, text as a JSON string, then the likeliest."""

    def prompt(self, text: str) -> None:
        print(f"{'':7} {'':9}  {json.dumps(text, ensure_ascii=False)}", flush=True)

    def token(self, token: Token) -> None:
        row = f"{token.id:7} {token.logprob:9.4f}  {json.dumps(token.text, ensure_ascii=False)}"
        top = "".join(f"  {other} {logprob:.4f}" for other, logprob in token.top_logprobs or ())
        print(row + (f"  |{top}" if top else ""), flush=True)


def format_figures(measured: dict[str, object], end: Finished) -> str:
    """The line that ends a run: tokens, time to first token, tokens per second, why it ended."""

    def speed(name: str) -> str:
        value = measured[f"{name}_tokens_per_second"]
        return f"{name} -" if value is None else f"{name} {value:,.0f} tokens/s"

    cached = f" ({measured['cached_tokens']} cached)" if measured["cached_tokens"] else ""
    first = measured["first_token_seconds"]
    parts = [
        f"{measured['prompt_tokens']} prompt{cached} + {measured['completion_tokens']} new tokens",
        "no token" if first is None else f"first token after {first * 1e3:,.1f} ms",
        speed("prefill"),
        speed("decode"),
        f"ended by {end.reason}" + (f": {end.note}" if end.note else ""),
    ]
    return ", ".join(parts)


def _report(
    model: "Model",
    params: "SamplingParams",
    text: str,
    ids: list[int],
    answer: _Answer,
    measured: dict[str, object],
) -> dict[str, object]:
    info = model.backend.info
    report: dict[str, object] = {
        "model": str(model.folder),
        "backend": {"name": info.name, "isa": info.isa, "threads": info.threads},
        "load_seconds": model.load_seconds,
        "sampling": asdict(params),
        "prompt": text,
        "prompt_ids": ids,
        "text": "".join(token.text for token in answer.tokens),
        "ids": [token.id for token in answer.tokens],
        "reason": str(answer.end.reason),
        "note": answer.end.note,
        "figures": measured,
    }
    if params.logprobs is not None:
        report["logprobs"] = [token.logprob for token in answer.tokens]
        report["top_logprobs"] = [token.top_logprobs for token in answer.tokens]
    return report
