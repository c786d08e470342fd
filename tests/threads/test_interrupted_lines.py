"""KeyboardInterrupt at every line of what changes a session: whatever it leaves, no bit is wrong.

A tracer raises where a signal would be taken, so that no moment is left to chance. A second one
falls into the roll-back of the first.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable

import pytest
from api.runs import cold
from golden.recipes import RECIPES

import kestrel
from kestrel.engine.request import Token
from kestrel.errors import RequestError

#: Code whose lines change what a session holds.
TRACED = tuple(
    os.path.join(os.path.dirname(kestrel.__file__), name)
    for name in ("cache", "engine", "session.py")
)
#: Without a window, with one, and with frequencies that restart at 20 tokens.
MODELS = ["mistral-null-window-bf16", "mistral-window-5-f16", "phi3-longrope-decode-f16"]


class Interrupts:
    """Raises at the given counts of lines, once each, while it is entered."""

    def __init__(self, *lines: int) -> None:
        self.lines, self.count = lines, 0

    def __enter__(self) -> "Interrupts":
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame, event, argument):
        return self._line if frame.f_code.co_filename.startswith(TRACED) else None

    def _line(self, frame, event, argument):
        if event == "line" and not _calls_nothing(frame):
            self.count += 1
            if self.count in self.lines:
                sys.settrace(self._call)  # an exception from a tracer ends the tracing
                raise KeyboardInterrupt
        return self._line


def _calls_nothing(frame) -> bool:
    """Lines where a tracer can raise while a lock is held, and a signal cannot, which Python takes
    behind calls alone: ``try`` at the begin of a block, ``with`` once more at its end."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line == "try:" or line.startswith("with ")


OPERATIONS: dict[str, Callable[[kestrel.Session, list[int]], object]] = {
    "prefill": lambda session, ids: session.prefill(ids[19:40]),
    "prefill in chunks": lambda session, ids: session.prefill(ids[19:40], chunk=7),
    "decode": lambda session, ids: session.decode(ids[19]),
    "truncate": lambda session, ids: session.truncate(8),
    "reset": lambda session, ids: session.reset(),
}


@pytest.mark.parametrize("second", [None, 1, 2, 3, 5, 8, 13, 21])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_interrupted_at_every_line(tmp_path, name, operation, second):
    recipe = RECIPES[name]
    folder, ids = recipe.write(tmp_path / "model"), recipe.ids(60)
    known: dict[tuple[int, ...], bytes] = {}
    with kestrel.load(folder, threads=1) as model, kestrel.load(folder, threads=1) as other:

        def expected(tokens: list[int]) -> bytes:
            if tuple(tokens) not in known:
                cold(other)
                known[tuple(tokens)] = other.session().prefill(tokens).tobytes()
            return known[tuple(tokens)]

        line = 0
        while True:
            line += 1
            if line % 20 == 0:  # each may have cost a block
                cold(model)
            session = model.session()
            session.prefill(ids[:19])
            lines = (line,) if second is None else (line, line + second)
            with Interrupts(*lines) as interrupts:
                try:
                    OPERATIONS[operation](session, ids)
                except KeyboardInterrupt:
                    pass
            if interrupts.count < line:
                break
            tokens = [*session.tokens, *ids[40:56]]
            assert session.prefill(ids[40:56]).tobytes() == expected(tokens), line
            assert session.tokens == tokens
            assert session.decode(ids[57]).tobytes() == expected([*tokens, ids[57]]), line
            again = model.session().prefill(tokens)
            assert again.tobytes() == expected(tokens), f"line {line} spoiled the cached prefix"
        assert line > 10


def test_a_step_of_an_engine_interrupted_at_every_line(tmp_path):
    """It goes on as if the step had not been, or it is closed: no token is lost or comes twice."""
    recipe = RECIPES[MODELS[0]]
    folder, ids = recipe.write(tmp_path / "model"), recipe.ids(40)
    params = kestrel.SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompts = [ids[:17], ids[17:20]]
    with kestrel.load(folder, threads=1) as model:
        expected = [answer.ids for answer in model.generate(prompts, params)]
        ends = {True: 0, False: 0}  # whether the engine was closed
        for step in (0, 3, 5):  # with the prompts, in the middle, with the last tokens
            line = 0
            while True:
                line += 1
                cold(model)
                engine = model.engine()
                order = [engine.add(prompt, params) for prompt in prompts]
                events = [event for _ in range(step) for event in engine.step()]
                with Interrupts(line) as interrupts:
                    try:
                        events += engine.step()
                    except KeyboardInterrupt:
                        pass
                if interrupts.count < line:
                    break
                is_closed = not engine.has_work
                ends[is_closed] += 1
                if is_closed:
                    with pytest.raises(RequestError, match="the engine was closed"):
                        engine.step()
                    continue
                for _ in range(20):
                    events += engine.step() if engine.has_work else []
                assert not engine.has_work
                tokens = [event for event in events if isinstance(event, Token)]
                found = [[each.id for each in tokens if each.request_id == key] for key in order]
                assert found == expected, (step, line)
                engine.close()
        assert min(ends.values()) > 10
