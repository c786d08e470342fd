"""Chats with the program: a template for the demo model, pipes, and terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import termios
import time

from system.command_line import run, start

__all__ = ["LONG", "SHORT", "STRICT", "TEMPLATE", "Terminal", "talk"]

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>\n{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
STRICT = (
    "{% for message in messages %}{% if message.content == 'never' %}"
    "{{ raise_exception('never is not allowed') }}{% endif %}{% endfor %}" + TEMPLATE
)
SHORT = ("--max-tokens", "12", "--seed", "5")
LONG = ("--max-tokens", "900", "--ignore-eos", "--seed", "5")


def talk(template, *lines: str, arguments=SHORT, status: int = 0) -> tuple[list[str], str]:
    """A chat through a pipe: the lines that it wrote, and standard error."""
    text = "".join(line + "\n" for line in lines)
    out, err = run(
        "chat", "--chat-template", template, *arguments, stdin=text.encode(), status=status
    )
    return out.splitlines(), err


class Terminal:
    """A chat on a terminal of its own: what is typed, what is shown."""

    def __init__(self, *arguments: object) -> None:
        self._controller, terminal = pty.openpty()

        def take_terminal() -> None:  # so that Ctrl-C typed there becomes a signal
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

        self.process = start(
            "chat", *arguments, stdin=terminal, stdout=terminal, stderr=terminal,
            start_new_session=True, preexec_fn=take_terminal, environment={"TERM": "dumb"},
        )  # fmt: skip
        os.close(terminal)
        self.shown = ""
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def wait_for(self, text: str, more: int = 0, again: str = "") -> str:
        """Read until ``text`` and ``more`` characters behind it are shown; all up to there.

        ``again`` is typed after each second in which nothing was shown.
        """
        deadline = time.monotonic() + 120
        while True:
            at = self.shown.find(text, self._seen)
            if at >= 0 and len(self.shown) >= at + len(text) + more:
                found = self.shown[self._seen : at + len(text) + more]
                self._seen = at + len(text)
                return found
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if select.select([self._controller], [], [], 1)[0]:
                data = os.read(self._controller, 65536)
                self.shown += data.decode(errors="replace").replace("\r\n", "\n")
            elif again:
                self.type(again)

    def end(self) -> int:
        """The exit status, once the program has ended."""
        try:
            while os.read(self._controller, 65536):
                pass
        except OSError:  # Linux: the other side was closed
            pass
        os.close(self._controller)
        return self.process.wait(timeout=60)
