"""A text of megabytes is encoded beside the interpreter: Ctrl-C and other threads get a turn."""

from __future__ import annotations

import signal

from processes import run_python
from system.command_line import start

from kestrel.tokenizer import Tokenizer

TEXT = "The quick brown fox, é日🙂 jumps over\n" * 60_000  # 2.6 MB, a second or more of work


def test_other_threads_go_on_while_a_text_is_encoded(demo_model):
    result = run_python(
        f"""
        import threading, time
        from kestrel.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder({str(demo_model)!r})
        short = tokenizer.encode({TEXT[:37]!r})
        turns, done = 0, threading.Event()

        def count():
            global turns
            while not done.wait(0.001):
                turns += 1

        threading.Thread(target=count).start()
        ids = tokenizer.encode({TEXT[:37]!r} * 60_000)
        counted = turns
        done.set()
        assert len(ids) == 1 + (len(short) - 1) * 60_000
        # Were the interpreter held, there would be a turn before and one after.
        print("counted", counted > 20)
        """
    )
    assert result.stdout == "counted True\n"


def test_ctrl_c_while_a_text_is_encoded(demo_model):
    result = run_python(
        f"""
        import os, signal, threading, time
        from kestrel.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder({str(demo_model)!r})

        def at_work():
            return [t for t in threading.enumerate() if t.name == "kestrel-tokenizer"]

        def interrupt():
            while not at_work():
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            tokenizer.encode({TEXT[:37]!r} * 600_000)  # longer than any delay of this thread
        except KeyboardInterrupt:
            print("interrupted before the end:", bool(at_work()))
        print(tokenizer.decode(tokenizer.encode("Once")))  # usable while the other still runs
        """
    )
    assert result.stdout == "interrupted before the end: True\nOnce\n"


def test_a_plain_text_comes_through_the_thread_too(demo_model):
    tokenizer = Tokenizer.from_folder(demo_model)
    text = "Once upon<|eos|>" * 10_000
    piece = tokenizer.encode("Once upon<|eos|>", False)
    assert tokenizer.encode(text, False) == piece * 10_000
    plain = tokenizer.encode(text, False, plain_content=True)
    assert 1 not in plain and tokenizer.decode(plain) == text


def test_the_program_ends_at_once_by_ctrl_c(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(TEXT, encoding="utf-8")
    with start("--file", path, "--greedy") as process:
        while b"greedy" not in process.stderr.readline():  # the last note before the text's turn
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (130, b"", b"kestrel: interrupted\n")
