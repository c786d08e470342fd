"""``kestrel chat`` in a pipe: history, commands, limits, and the conversation behind it."""

import json
import os

from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from system.chats import SHORT, STRICT, TEMPLATE, talk
from system.command_line import run

import kestrel
from kestrel.cli.conversation import Conversation
from kestrel.sampling.params import SamplingParams
from kestrel.text.chat_template import encode_chat


def test_a_turn_computes_only_what_is_new(template):
    lines, _ = talk(template, "Tell me of the king and of his three daughters", "/figures",
                    "And what did the youngest of them say to him?", "/figures")  # fmt: skip
    first, second = (line for line in lines if "new tokens" in line)
    assert "cached" not in first
    prompt, cached = second.replace("(", "").split()[0:3:2]
    assert 16 <= int(cached) < int(prompt)


def test_options_with_ids_that_the_model_lacks_are_refused_before_the_first_message(template):
    lines, err = talk(template, arguments=("--stop-token", "4096"), status=2)
    assert lines == [] and len(err.splitlines()) == 1
    assert "--stop-token: expected token ids 0 to 4095 (vocab_size 4096), found 4096" in err


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


def test_what_is_no_template_is_refused_before_a_word_is_typed(demo_model, tmp_path):
    path = tmp_path / "chat_template.jinja"
    path.write_text("one\n{% for %}")
    _, err = run("chat", "--chat-template", path, status=2)
    assert f"{path}: chat_template: not a Jinja template: " in err and "at line 2" in err
    config = tiny_llama_config(vocab_size=4096)
    tensors = tiny_llama_tensors(config, seed=7)
    write_checkpoint(tmp_path, config, tensors, tokenizer=demo_model)
    _, err = run("chat", tmp_path, status=2)
    assert f"{tmp_path}: chat_template: not a Jinja template: " in err and "Traceback" not in err


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
