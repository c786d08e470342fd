"""The command line in real processes: streams, signals, pipes, odd input, exit statuses."""

import json
import os
import re
import signal
import time

import pytest
from system.command_line import CASTLE, CASTLE_IDS, CASTLE_TEXT, on_a_terminal, run, start

GREEDY = ("--greedy", "--repetition-penalty", "1", "--max-tokens", "11")
LONG = ("--max-tokens", "900", "--ignore-eos", "--seed", "1")


def test_a_text_alone_is_continued_greedily_as_transformers_does():
    out, err = run(CASTLE, *GREEDY)
    assert out == CASTLE + CASTLE_TEXT + "\n"
    _, _, settings, figures = err.splitlines()  # the lines that the README speaks of
    assert settings.startswith("kestrel: greedy")
    assert re.fullmatch(
        r"kestrel: 11 prompt \+ 11 new tokens, first token after [\d.,]+ ms, "
        r"prefill [\d,]+ tokens/s, decode [\d,]+ tokens/s, ended by length.*",
        figures,
    )


def test_a_run_can_be_repeated_from_the_seed_that_it_shows():
    out, err = run("Once upon a time", "--max-tokens", 30)
    seed = re.search(r"seed (\d+)", err)[1]
    again, _ = run("Once upon a time", "--max-tokens", 30, "--seed", seed)
    assert out.startswith("Once upon a time") and again == out


def test_text_comes_token_by_token_into_a_pipe():
    with start("Once", *LONG, "--max-tokens", 200) as process:
        pieces = []
        while piece := os.read(process.stdout.fileno(), 65536):
            pieces.append(piece)
    # Not 201 pieces: a busy machine may let several tokens come together.
    assert len(pieces) > 20
    assert pieces[0].startswith(b"Once")


def test_quiet_leaves_standard_error_empty_and_no_echo_the_prompt_out():
    out, err = run(CASTLE, *GREEDY, "--quiet", "--no-echo")
    assert (out, err) == (CASTLE_TEXT + "\n", "")


def test_json_is_one_object_with_ids_figures_and_settings():
    out, _ = run(CASTLE, *GREEDY, "--json", "--backend", "cpu", "--threads", "1")
    report = json.loads(out)
    assert report["prompt_ids"] == CASTLE_IDS
    assert report["ids"] == [274, 296, 261, 3293, 283, 261, 1820, 310, 260, 1084, 1820]
    assert (report["text"], report["reason"]) == (CASTLE_TEXT, "length")
    assert report["sampling"]["temperature"] == 0.0
    assert report["sampling"]["top_p"] == 0.9  # from the model's generation_config.json
    assert report["backend"]["name"] == "cpu" and report["backend"]["threads"] == 1
    assert report["figures"]["prompt_tokens"] == 11
    assert report["figures"]["decode_tokens_per_second"] > 0


def test_ctrl_c_leaves_the_text_and_says_interrupted():
    with start("Once", *LONG) as process:
        text = os.read(process.stdout.fileno(), 65536)
        while len(text) < 50:
            text += os.read(process.stdout.fileno(), 65536)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (text + rest).startswith(b"Once") and rest.endswith(b"\n")
    assert err.endswith(b"kestrel: interrupted\n") and b"Traceback" not in err


def test_ctrl_c_pressed_again_changes_nothing():
    with start("Once", *LONG) as process:
        os.read(process.stdout.fileno(), 4)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.001)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(b"kestrel: interrupted\n") and b"Traceback" not in err


def test_a_reader_that_stops_reading_ends_the_program_quietly():
    with start("Once", *LONG) as process:
        os.read(process.stdout.fileno(), 4)
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert b"Traceback" not in err and b"ignored" not in err and b"error" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_named():
    with open("/dev/full", "wb") as full:
        _, err = run("Once", status=3, stdout=full)
    assert "No space left on device" in err and "Traceback" not in err and "ignored" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_that_cannot_be_written_is_an_error(option):
    with open("/dev/full", "wb") as full:
        _, err = run(option, status=3, stdout=full)
    assert "No space left on device" in err and "Traceback" not in err


@pytest.mark.parametrize("arguments", [("--greedy", "-"), ("--file", "-"), ("chat",)])
def test_a_closed_standard_input_is_no_empty_prompt(arguments):
    def close_input():
        os.close(0)

    with start(*arguments, stdin=None, preexec_fn=close_input) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert b"standard input: expected text, found that it is closed" in err


def test_streams_that_are_not_needed_may_be_closed():
    def close_streams():
        os.close(0)
        os.close(2)

    with start("Once", *GREEDY, preexec_fn=close_streams) as process:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0 and out.startswith(b"Once")


@pytest.mark.parametrize("option", [("Once", "--max-tokens", 3), ("devices",), ("--help",)])
def test_a_closed_standard_output_loses_no_result_without_a_word(option):
    _, err = run(*option, status=3, preexec_fn=lambda: os.close(1))
    assert err.endswith("standard output: expected one for the results, found that it is closed\n")


def test_all_streams_closed_give_the_status_alone():
    def close_streams():
        for descriptor in (0, 1, 2):
            os.close(descriptor)

    with start("Once", "--max-tokens", 3, preexec_fn=close_streams) as process:
        assert process.wait(timeout=60) == 3


def test_the_prompt_from_standard_input_loses_one_line_end():
    for data in (CASTLE.encode(), CASTLE.encode() + b"\n", CASTLE.encode() + b"\r\n"):
        out, _ = run("-", *GREEDY, "--json", stdin=data)
        assert json.loads(out)["prompt_ids"] == CASTLE_IDS
    out, _ = run("-", *GREEDY, "--json", stdin=CASTLE.encode() + b"\n\n")
    assert json.loads(out)["prompt"] == CASTLE + "\n"


def test_nul_and_other_characters_are_part_of_a_prompt():
    out, _ = run("-", *GREEDY, "--json", stdin="a\0b\u2028 caf\u00e9 \U0001f642".encode())
    assert json.loads(out)["prompt"] == "a\0b\u2028 caf\u00e9 \U0001f642"


def test_bytes_that_are_not_utf8_are_named():
    _, err = run(b"caf\xe9".decode("utf-8", "surrogateescape"), status=2)
    assert "PROMPT: expected UTF-8 text, found the byte 0xe9 at offset 3" in err
    _, err = run("Once", "--stop", b"a\xff".decode("utf-8", "surrogateescape"), status=2)
    assert "--stop: expected UTF-8 text, found the byte 0xff at offset 1" in err
    _, err = run("-", stdin=b"caf\xe9 au lait", status=2)
    assert "standard input: expected UTF-8 text, found the byte 0xe9 at offset 3" in err


def test_utf8_arguments_are_understood_in_any_locale():
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out, _ = run("caf\u00e9", *GREEDY, "--stop", "\u00e9", "--json", environment=plain)
    report = json.loads(out)
    assert report["prompt"] == "caf\u00e9" and report["sampling"]["stop"] == ["\u00e9"]


def test_a_character_that_the_output_cannot_hold_is_shown_by_its_number():
    out, _ = run("caf\u00e9", *GREEDY, environment={"PYTHONIOENCODING": "ascii"})
    assert out.startswith(r"caf\xe9")


@pytest.mark.parametrize("filters", ["default", "error", "ignore"])
def test_warnings_are_one_line(filters):
    environment = {"KESTREL_THREDS": "1", "PYTHONWARNINGS": filters}
    _, err = run("Once", "--max-tokens", 2, environment=environment)
    [line] = [line for line in err.splitlines() if "KESTREL_THREDS" in line]
    assert line.startswith("kestrel: warning: KESTREL_THREDS is set, but means nothing")


@pytest.mark.parametrize(
    ("variable", "value", "status"),
    [("KESTREL_ISA", "avx99", 2), ("KESTREL_THREADS", "many", 2), ("KESTREL_BACKEND", "tpu", 2)],
)
def test_a_wrong_environment_variable_is_named(variable, value, status):
    _, err = run("Once", status=status, environment={variable: value})
    assert variable in err and repr(value) in err and "Traceback" not in err
    out, _ = run("devices", environment={variable: value})
    assert f"{variable}: expected" in out and "KESTREL" in out and "rms_norm" in out


def test_debug_shows_the_traceback():
    _, err = run("Once", "--model", "/nowhere", "--debug", status=2)
    assert "Traceback" in err and err.splitlines()[-1].startswith("kestrel: error: /nowhere")


def test_a_terminal_shows_the_prompt_in_bold():
    assert on_a_terminal("stdout", CASTLE, *GREEDY, TERM="xterm") == (
        f"\x1b[1m{CASTLE}\x1b[0m{CASTLE_TEXT}\n"
    )
    assert on_a_terminal("stdout", CASTLE, *GREEDY, TERM="dumb") == CASTLE + CASTLE_TEXT + "\n"
    plain = on_a_terminal("stdout", CASTLE, *GREEDY, TERM="xterm", NO_COLOR="1")
    assert plain == CASTLE + CASTLE_TEXT + "\n"


def test_a_terminal_is_spared_control_characters():
    shown = on_a_terminal("stdout", "a\x1b]0;title\x07b\tc", *GREEDY, TERM="dumb")
    assert shown.startswith("a\\x1b]0;title\\x07b\tc")
