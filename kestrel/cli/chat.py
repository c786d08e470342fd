"""``kestrel chat``: lines in, answers out, and commands that begin with a slash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
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
    visible,
)
from kestrel.cli.conversation import Conversation
from kestrel.cli.generate import format_figures
from kestrel.cli.inputs import check_stdin, read_template
from kestrel.cli.options import utf8
from kestrel.errors import CapacityError, RequestError
from kestrel.text.chat_template import check_template, choose_template

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]

_HELP = """\
/help           this list
/reset          forget the conversation; the system message stays
/system TEXT    set the system message; without TEXT, show it
/save FILE      write the conversation as JSON
/figures        tokens and speed of the last answer
/quit           end, as Ctrl-D does
//TEXT          a message that begins with a slash
Ctrl-C stops an answer; what was written stays in the conversation.
A backslash at the end of a line continues the message on the next line."""


def run(args: "argparse.Namespace") -> int:
    """Talk until the input ends; 0, or 2 when a turn failed and nobody sat at the terminal."""
    given = given_params(args)
    template = read_template(args)
    check_stdin()
    model = load_model(args)
    if template is None:
        template = choose_template(model.tokenizer)
        check_template(template, model.folder)
    params = params_for(model, given, max_tokens=None)
    chat = Conversation(model, params, template, args.plain_content, args.system)
    note(describe_load(model))
    note(describe_model(model))
    note(describe_params(model, params, given))
    loop = _Loop(chat, sys.stdin.isatty())
    with loop.interrupts:
        loop.run()
    return 2 if loop.failures and not loop.interactive else 0


class _Interrupts:
    """Ctrl-C, once per section in which it may act; elsewhere it does nothing.

    So a second Ctrl-C, pressed while the first is being dealt with, does not end the program.
    """

    def __init__(self) -> None:
        self._armed = False

    def __enter__(self) -> "_Interrupts":
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def armed(self):
        """A section that raises KeyboardInterrupt."""
        self._armed = True
        try:
            yield
        finally:
            self._armed = False

    def _handle(self, number: int, frame: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt


class _Loop:
    """Lines in, answers and the replies of commands out."""

    def __init__(self, chat: Conversation, interactive: bool) -> None:
        self.chat = chat
        self.interactive = interactive
        self.interrupts = _Interrupts()
        self.failures = 0
        self._saved: set[str] = set()
        self._commands = {
            "help": lambda rest: print(_HELP),
            "reset": lambda rest: self.chat.reset(),
            "system": self._system,
            "save": self._save,
            "figures": self._figures,
        }
        if interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  input() edits lines once this is imported
            note("/help lists the commands, Ctrl-D ends")
        if hasattr(sys.stdin, "reconfigure"):
            # Bytes that are not UTF-8 are refused with the message they stand in, by _take.
            sys.stdin.reconfigure(errors="surrogateescape")

    def run(self) -> None:
        """Until the input ends or /quit."""
        while True:
            try:
                with self.interrupts.armed():
                    message = self._read()
            except KeyboardInterrupt:
                print(file=sys.stderr)
                note("Ctrl-D or /quit ends")
                continue
            except EOFError:
                if self.interactive:
                    print()
                return
            if message.strip() == "/quit":
                return
            try:
                self._take(message)
            except (RequestError, CapacityError) as error:
                self.failures += 1
                note(f"error: {error}")

    def _read(self) -> str:
        """One message: a line, and those that follow while each ends in a backslash."""
        lines = []
        prompts = ("> ", ". ") if self.interactive else ("", "")
        while True:
            line = input(prompts[bool(lines)])
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _take(self, message: str) -> None:
        try:
            message = utf8(message)
        except ValueError as error:
            raise RequestError(f"the line was not taken: {error}") from None
        if not message.strip():
            return
        if message.startswith("/") and not message.startswith("//"):
            name, _, rest = message[1:].partition(" ")
            if name not in self._commands:
                raise RequestError(f"there is no command /{name}: /help lists them")
            self._commands[name](rest.strip())
            return
        self._answer(message[1:] if message.startswith("//") else message)

    def _answer(self, text: str) -> None:
        at_line_start = True
        stopped = False
        with contextlib.closing(self.chat.answer(text)) as pieces:
            try:
                with self.interrupts.armed():
                    for piece in pieces:
                        sys.stdout.write(visible(piece))
                        sys.stdout.flush()
                        at_line_start = piece.endswith("\n") if piece else at_line_start
            except KeyboardInterrupt:
                stopped = True
        if not at_line_start:
            print(flush=True)
        if stopped:
            note("stopped; what was written stays in the conversation")
        elif self.chat.last is not None and self.chat.last[0].reason == "length":
            note(f"the answer was ended by length: {self.chat.last[0].note or '--max-tokens'}")

    def _system(self, rest: str) -> None:
        if rest:
            self.chat.system = rest
        else:
            print(self.chat.system if self.chat.system is not None else "no system message is set")

    def _figures(self, rest: str) -> None:
        if self.chat.last is None:
            print("no answer has been finished")
        else:
            end, first = self.chat.last
            print(format_figures(figures(end.usage, first), end))

    def _save(self, rest: str) -> None:
        if not rest:
            raise RequestError("/save: expected the name of a file")
        try:
            self._write(rest)
        except RequestError:
            raise
        except (OSError, ValueError) as error:  # ValueError: NUL, or outside the locale's encoding
            reason = getattr(error, "strerror", None) or error
            shown = rest if rest.isprintable() else repr(rest)
            raise RequestError(f"/save: {shown} cannot be written: {reason}") from None

    def _write(self, rest: str) -> None:
        path = os.path.abspath(os.path.expanduser(rest))
        if os.path.exists(path) and path not in self._saved:
            raise RequestError(f"/save: {path} exists already: give another name")
        _write_whole(path, json.dumps(self.chat.messages, indent=2, ensure_ascii=False) + "\n")
        self._saved.add(path)
        note(f"{len(self.chat.messages)} messages written to {path}")


def _write_whole(path: str, text: str) -> None:
    """Write a file so that a full disk leaves no half of it behind. Raises OSError, ValueError."""
    folder = os.path.dirname(path)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
