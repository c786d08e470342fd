"""Load: opening a checkpoint, loading a model, the first token of a fresh process, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import kestrel
import pytest
from figures import digest

from kestrel.checkpoint.checkpoint import Checkpoint
from kestrel.model import DEMO_MODEL
from kestrel.models import understand
from kestrel.sampling.params import SamplingParams

LARGE = pytest.mark.large
MEGA = 1e6
PROMPT = "Once upon a time"
GREEDY = SamplingParams(temperature=0.0, max_tokens=1)

#: Loads a model, generates, prints what memory that took: (before, after) in kB by kind.
MEMORY = """
import json, sys
import numpy, tokenizers
import kestrel
from kestrel.runtime import native_ops
native_ops()

def resident():
    lines = (line.split() for line in open("/proc/self/status"))
    return {w[0][:-1]: int(w[1]) for w in lines if w[0] in ("RssAnon:", "RssFile:")}

before = resident()
model = kestrel.load(sys.argv[1])
params = kestrel.SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
ids = model.generate([5, 6, 7], params).ids
print(json.dumps([before, resident(), ids]))
"""


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def environment() -> dict[str, str]:
    """So that a new process finds the kestrel that this one has."""
    found = str(Path(kestrel.__file__).resolve().parents[1])
    paths = [found, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def file_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    "name, dtype", [("15M", "BF16"), pytest.param("1GB", "BF16", marks=LARGE)]
)
def test_open(measure, checkpoint, name, dtype):
    """Mapping the file, checking its header and every tensor's place; pages are warm."""
    folder = checkpoint(name, dtype)

    def opened():
        return understand(Checkpoint(folder)).weights

    def result() -> str:
        views = list(opened().tensors())
        # The header is 8 bytes and what they count; everything else belongs to a tensor.
        with (folder / "model.safetensors").open("rb") as file:
            header = 8 + int.from_bytes(file.read(8), "little")
        assert header + sum(view.nbytes for view in views) == file_bytes(folder)
        return digest(f"{view.name} {view.shape} {bytes(view.data[:64])!r}" for view in views)

    note = f"{file_bytes(folder) / MEGA:,.0f} MB"
    measure(opened, result=result, count=1, unit="ms", note=note)


@pytest.mark.parametrize(
    "name, dtype",
    [("demo", "BF16"), ("tales-15m", "BF16"), pytest.param("135M", "BF16", marks=LARGE)],
)
def test_load(measure, checkpoint, name, dtype):
    """kestrel.load: the above, the tokenizer, the cache, recording and compiling the program."""
    folder = DEMO_MODEL if name == "demo" else checkpoint(name, dtype)

    def load_and_close() -> None:
        kestrel.load(folder).close()

    def result() -> str:
        with kestrel.load(folder) as model:
            return digest([model.session().prefill([2, 3, 5])])

    note = f"{file_bytes(folder) / MEGA:,.0f} MB"
    measure(load_and_close, result=result, count=1, unit="ms", note=note)


def test_first_token_of_demo(measure):
    """From kestrel.load in a process that has imported everything."""

    def first_token() -> str:
        with kestrel.load() as model:
            return next(model.stream(PROMPT, GREEDY)).text

    def result() -> str:
        with kestrel.load(backend="reference") as model:
            assert model.generate(PROMPT, GREEDY).text == first_token()
        return digest([first_token()])

    measure(first_token, result=result, count=1, unit="ms")


def test_first_token_of_command(measure, tmp_path):
    """From the start of ``python -m kestrel`` until its first byte of text."""
    command = python("-m", "kestrel", "--no-echo", "--quiet", "--greedy", "--max-tokens", "8")
    seen: list[bytes] = []

    def first_byte() -> None:
        process = subprocess.Popen(
            [*command, PROMPT], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
        )
        seen.append(process.stdout.read(1))
        children.append(process)

    children: list[subprocess.Popen] = []

    def end_of_last() -> None:
        while children:
            process = children.pop()
            seen.append(seen.pop() + process.stdout.read())
            process.stdout.close()
            assert process.wait() == 0

    def result() -> str:
        end_of_last()
        with kestrel.load() as model:
            expected = model.generate(PROMPT, model.defaults.replace(temperature=0.0, max_tokens=8))
        assert {text.decode().rstrip("\n") for text in seen} == {expected.text}
        return digest([expected.text])

    measure(first_byte, setup=end_of_last, result=result, count=1, unit="ms")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells it on Linux alone")
@pytest.mark.parametrize(
    "name, dtype",
    [
        ("15M", "BF16"),
        pytest.param("135M", "BF16", marks=LARGE),
        pytest.param("1B", "BF16", marks=LARGE),
    ],
)
def test_resident(measure, checkpoint, name, dtype):
    """Memory of a process that loads a model and generates: the weights stay in the file."""
    folder = checkpoint(name, dtype)
    weights = file_bytes(folder)
    report: list = []

    def run() -> None:
        found = subprocess.run(
            python("-c", MEMORY, str(folder)), env=environment(), capture_output=True, check=True
        )
        report[:] = json.loads(found.stdout)

    def result() -> str:
        return digest([repr(report[2])])

    measure(run, result=result, count=1, unit="s", rounds=1, budget=0.1)
    before, after, _ = report
    own, shared = ((after[kind] - before[kind]) * 1024 for kind in ("RssAnon", "RssFile"))
    measure.says(
        f"a file of {weights / MEGA:,.0f} MB: {own / MEGA:,.0f} MB of its own memory, "
        f"{shared / MEGA:,.0f} MB shared"
    )
    # A copy of the weights would be as large as the file; half of it is clearly none.
    assert own < max(weights / 2, 64 * MEGA)
