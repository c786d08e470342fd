"""``kestrel chat`` on a real terminal: Ctrl-C, Ctrl-D, line editing."""

import json

import pytest
from system.chats import LONG, SHORT, Terminal


@pytest.fixture
def terminal(template):
    opened = []

    def open_chat(*arguments: object) -> Terminal:
        opened.append(Terminal("--chat-template", template, *arguments))
        opened[-1].wait_for("Ctrl-D ends")
        opened[-1].wait_for("> ")
        return opened[-1]

    yield open_chat
    for chat in opened:
        if chat.process.poll() is None:
            chat.process.kill()
            chat.process.wait()


def test_ctrl_c_stops_the_answer_and_not_the_program(terminal, tmp_path):
    chat = terminal(*LONG)
    chat.type("Tell me a story\n")
    chat.wait_for("Tell me a story\n", more=40)
    chat.type("\x03")
    chat.wait_for("stopped; what was written stays in the conversation")
    chat.wait_for("> ")
    path = tmp_path / "saved.json"
    chat.type(f"/save {path}\n")
    chat.wait_for("2 messages written")
    user, answer = json.loads(path.read_text())
    assert user == {"role": "user", "content": "Tell me a story"}
    assert answer["role"] == "assistant" and len(answer["content"]) >= 40
    # What is kept is what was shown, up to the ^C that the terminal shows.
    shown = chat.shown.split("Tell me a story\n")[1].split("^C")[0]
    assert shown.startswith(answer["content"][:40])
    chat.type("And then?\n")
    chat.wait_for("And then?\n", more=20)
    chat.type("\x03")
    chat.wait_for("stopped")
    chat.wait_for("> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_ctrl_c_at_the_prompt_says_how_to_end(terminal):
    chat = terminal(*SHORT)
    chat.type("half a line\x03")
    # Python sees a signal that comes just before readline waits only with the next key.
    chat.wait_for("Ctrl-D or /quit ends", again="\x03")
    chat.wait_for("> ")
    chat.type("/quit\n")
    assert chat.end() == 0


def test_lines_can_be_edited(terminal, tmp_path):
    pytest.importorskip("readline")
    path = tmp_path / "saved.json"
    chat = terminal(*SHORT)
    chat.type("Helo\x1b[D\x1b[Dl\n")  # twice the left arrow
    chat.wait_for("ended by length")
    chat.wait_for("> ")
    chat.type("a second line\x01The \n")  # Ctrl-A: to the beginning of the line
    chat.wait_for("ended by length")
    chat.type(f"/save {path}\n")
    chat.wait_for("4 messages written")
    contents = [message["content"] for message in json.loads(path.read_text())]
    assert contents[::2] == ["Hello", "The a second line"]
