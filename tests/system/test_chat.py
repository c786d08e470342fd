"""``kestrel chat`` on a real terminal and in a pipe: history, interrupts, commands, limits."""

import fcntl
import json
import os
import pty
import select
import termios
import time

import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from system.command_line import run, start

import kestrel
from kestrel.cli.conversation import Conversation
from kestrel.sampling.params import SamplingParams
from kestrel.text.chat_template import encode_chat

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


@pytest.fixture
def template(tmp_path):
    """A file with a chat template: the demo model has none of its own."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return path


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

    def wait_for(self, text: str, more: int = 0) -> str:
        """Read until ``text`` and ``more`` characters behind it are shown; all up to there."""
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

    def end(self) -> int:
        """The exit status, once the program has ended."""
        try:
            while os.read(self._controller, 65536):
                pass
        except OSError:  # Linux: the other side was closed
            pass
        os.close(self._controller)
        return self.process.wait(timeout=60)


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


def talk(template, *lines: str, arguments=SHORT, status: int = 0) -> tuple[list[str], str]:
    """A chat through a pipe: the lines that it wrote, and standard error."""
    text = "".join(line + "\n" for line in lines)
    out, err = run(
        "chat", "--chat-template", template, *arguments, stdin=text.encode(), status=status
    )
    return out.splitlines(), err


# -- on a terminal -----------------------------------------------------------------------------


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
    chat.wait_for("Ctrl-D or /quit ends")
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


# -- through a pipe ----------------------------------------------------------------------------


def test_a_turn_computes_only_what_is_new(template):
    lines, _ = talk(template, "Tell me of the king and of his three daughters", "/figures",
                    "And what did the youngest of them say to him?", "/figures")  # fmt: skip
    first, second = (line for line in lines if "new tokens" in line)
    assert "cached" not in first
    prompt, cached = second.replace("(", "").split()[0:3:2]
    assert 16 <= int(cached) < int(prompt)


def test_a_backslash_continues_the_message_and_two_slashes_are_one(template, tmp_path):
    path = tmp_path / "saved.json"
    talk(template, "one\\", "two", "//three", f"/save {path}")
    contents = [message["content"] for message in json.loads(path.read_text())]
    assert contents[::2] == ["one\ntwo", "/three"]


def test_system_and_reset(template, tmp_path):
    path = tmp_path / "saved.json"
    lines, err = talk(template, "/system", "/system You are a fox", "/system", "Hello", "/reset",
                      f"/save {path}")  # fmt: skip
    assert lines[:2] == ["no system message is set", "You are a fox"]
    assert json.loads(path.read_text()) == [{"role": "system", "content": "You are a fox"}]


def test_save_overwrites_only_what_it_wrote(template, tmp_path):
    mine, theirs = tmp_path / "mine.json", tmp_path / "theirs.json"
    theirs.write_text("keep me")
    _, err = talk(template, f"/save {mine}", f"/save {mine}", f"/save {theirs}", "/save",
                  f"/save {tmp_path}/none/x.json", status=2)  # fmt: skip
    assert err.count("0 messages written") == 2
    assert f"{theirs} exists already" in err and theirs.read_text() == "keep me"
    assert "/save: expected the name of a file" in err
    assert f"{tmp_path}/none/x.json cannot be written: No such file or directory" in err
    assert sorted(os.listdir(tmp_path)) == ["mine.json", "template.jinja", "theirs.json"]


def test_unknown_commands_are_not_sent_to_the_model(template):
    lines, err = talk(template, "/rest", status=2)
    assert lines == [] and "there is no command /rest: /help lists them" in err
    lines, _ = talk(template, "/help")
    assert {line.split()[0] for line in lines if line.startswith("/")} == {
        "/help", "/reset", "/system", "/save", "/figures", "/quit", "//TEXT",
    }  # fmt: skip


def test_a_full_context_is_named_and_nothing_is_cut(template, tmp_path):
    path = tmp_path / "saved.json"
    _, err = talk(template, "Hello", "word " * 80, f"/save {path}", "/reset", "Hello again",
                  arguments=(*SHORT, "--max-context", "64"), status=2)  # fmt: skip
    [message] = [line for line in err.splitlines() if "error" in line]
    assert "the context limit is 64" in message and "/reset starts anew" in message
    assert len(json.loads(path.read_text())) == 2  # the first turn is untouched
    assert err.count("error") == 1


def test_an_answer_that_meets_the_context_limit_says_so(template):
    _, err = talk(template, "Hello", arguments=("--max-context", "32", "--ignore-eos"))
    assert "the answer was ended by length" in err and "32" in err.split("ended by length")[1]


def test_a_template_that_refuses_speaks_in_its_own_words(tmp_path):
    path = tmp_path / "strict.jinja"
    path.write_text(STRICT)
    lines, err = talk(path, "never", "hello", status=2)
    assert "never is not allowed" in err and lines  # the next message is answered


def test_input_that_is_not_utf8_is_named(template):
    out, err = run("chat", "--chat-template", template, stdin=b"caf\xe9\n", status=2)
    assert out == "" and "found the byte 0xe9 at offset 3" in err and "Traceback" not in err


def test_no_failure_of_a_command_ends_the_chat(template, tmp_path):
    path = tmp_path / "saved.json"
    lines = [b"/save a\0b", b"/save ~\0", b"/save a\xff", b"/system b\xff", b"/system kept",
             b"/save " + bytes(path)]  # fmt: skip
    _, err = run(
        "chat", "--chat-template", template, stdin=b"\n".join(lines), status=2, cwd=tmp_path
    )
    errors = [line for line in err.splitlines() if line.startswith("kestrel: error: ")]
    assert len(errors) == 4 and "Traceback" not in err
    assert "null byte" in errors[0] and "0xff at offset 7" in errors[2]
    assert json.loads(path.read_text()) == [{"role": "system", "content": "kept"}]
    assert sorted(tmp_path.iterdir()) == [path, template]


def test_utf8_is_understood_and_saved_in_any_locale(template, tmp_path):
    path = tmp_path / "saved.json"
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    text = f"/system caf\u00e9\n/save \u00e9/x\n/save {path}\n".encode()
    _, err = run(
        "chat", "--chat-template", template, stdin=text, status=2, cwd=tmp_path, environment=plain
    )
    assert "Traceback" not in err and err.count("kestrel: error: ") == 1
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved == [{"role": "system", "content": "caf\u00e9"}]


def test_without_a_template_the_error_says_how_to_give_one():
    _, err = run("chat", status=2)
    assert "no chat template" in err and "--chat-template FILE" in err and "kestrel --model" in err


def test_a_model_with_a_template_of_its_own_needs_no_option(demo_model, tmp_path):
    config = tiny_llama_config(vocab_size=4096)
    tensors = tiny_llama_tensors(config, seed=7)
    write_checkpoint(tmp_path, config, tensors, tokenizer=demo_model)
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    out, err = run("chat", tmp_path, "--max-tokens", 4, stdin=b"Hello\n/figures\n")
    # <user>, Hello and <assistant>, each with its line end, and no BOS: the template writes none.
    ids = kestrel.load().tokenizer.encode("<user>\nHello\n<assistant>\n", add_special_tokens=False)
    assert f"{len(ids)} prompt + 4 new tokens" in out and "Traceback" not in err


# -- the conversation itself -------------------------------------------------------------------


def test_answers_from_the_cache_are_those_of_a_fresh_model():
    params = SamplingParams(temperature=0.8, seed=11, max_tokens=24)
    with kestrel.load() as model:
        chat = Conversation(model, params, TEMPLATE, system="You tell tales of old")
        answers = ["".join(chat.answer(text)) for text in ("Who is there?", "And who else?")]
        assert chat.last[0].usage.cached_tokens > 0
    for turn, answer in enumerate(answers):
        messages = chat.messages[: 2 + 2 * turn]
        with kestrel.load() as model:
            ids = encode_chat(model.tokenizer, messages, template=TEMPLATE)
            assert model.generate(ids, params).text == answer


def test_control_words_in_a_message(demo_model):
    with kestrel.load() as model:
        end = model.tokenizer.token_id("<|eos|>")
        for plain_content, found in ((False, True), (True, False)):
            chat = Conversation(model, SamplingParams(), TEMPLATE, plain_content)
            assert (end in chat.prompt_ids("a<|eos|>b")) is found


def test_an_answer_of_which_nothing_came_leaves_the_conversation_as_it_was():
    with kestrel.load() as model:
        chat = Conversation(model, SamplingParams(seed=1), TEMPLATE)
        answer = chat.answer("Hello")
        answer.close()
        assert chat.messages == []
        answer = chat.answer("Hello")
        first = next(piece for piece in answer if piece)
        answer.close()
        assert [message["role"] for message in chat.messages] == ["user", "assistant"]
        assert chat.messages[1]["content"] == first
