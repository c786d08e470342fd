"""User reports S28, S38, S45, S47, S48: what a start costs, says and loads, in real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from api.tiny import write_tiny
from processes import run_python
from system.command_line import run

import kestrel
from kestrel import _ops

NEEDS_AFFINITY = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks"
)
SHORT = ("--greedy", "--max-tokens", "2")


def test_s28_a_large_tokenizer_opens_and_its_time_is_shown(
    demo_model: Path, tmp_path: Path
) -> None:
    """250,000 entries and 20,000 added tokens; the time is printed by part."""
    folder = write_tiny(tmp_path / "m", dtype="BF16", vocab_size=4096)
    data = json.loads((demo_model / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    vocab.update({f"word{n}": n for n in range(len(vocab), 250_000)})
    settings = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    data["added_tokens"] += [
        {"id": 250_000 + n, "content": f"<|extra_{n}|>", **settings} for n in range(20_000)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    shutil.copy(demo_model / "tokenizer_config.json", folder)
    with kestrel.load(folder, threads=1) as model:
        assert model.tokenizer.vocab_size == 270_000
        assert model.encode("Once<|extra_19999|>") == [0, 3895, 269_999]
        took = model.load_seconds
    assert list(took) == ["files", "backend", "weights", "tokenizer", "program"]
    # A vocabulary of this size is most of the work: a part that was not timed would be 0.
    assert took["tokenizer"] == max(took.values()) > 0
    _, err = run("--model", folder, *SHORT, "Once")
    number = r"\d+\.\d\d"
    assert re.search(
        rf"loaded in {number} s: files {number}, backend {number}, weights {number}, "
        rf"tokenizer {number}, program {number}\n",
        err,
    )


def test_s38_limit_and_bytes_a_token_are_said_at_the_start(tmp_path: Path) -> None:
    """2 layers, keys and values, 2 heads of 8: 64 elements a token, of 4 bytes or of 2."""
    folder = write_tiny(tmp_path / "m", max_position_embeddings=1048576)
    _, err = run("--model", folder, *SHORT, "t1 t2 t3 t4 t5")
    assert "context 1,048,576 tokens, cache 256 bytes a token" in err
    _, err = run("--model", folder, *SHORT, "--kv-dtype", "float16", "t1 t2 t3 t4 t5")
    assert "cache 128 bytes a token" in err


@NEEDS_AFFINITY
def test_s45_the_threads_are_said_at_the_start() -> None:
    """One processor of those that this process may use is granted to the command."""
    granted = min(os.sched_getaffinity(0))
    _, err = run("Once", *SHORT, preexec_fn=lambda: os.sched_setaffinity(0, [granted]))
    assert re.search(r"on cpu \w+, 1 thread;", err)
    _, err = run("Once", *SHORT, "--threads", "3")
    assert re.search(r"on cpu \w+, 3 threads;", err)


def test_s47_the_override_is_followed_and_listed(tmp_path: Path) -> None:
    """KESTREL_ISA=scalar: the table shows it, every kernel is the baseline's, the text the same."""
    baseline = {"KESTREL_ISA": "scalar"}
    found = json.loads(run("devices", "--json", environment=baseline)[0])
    assert [row["name"] for row in found["instruction_sets"] if row["chosen"]] == ["scalar"]
    kernels = {isa for variants in found["kernels"].values() for isa in variants.values()}
    assert kernels == {"scalar"}
    text, err = run("Once", "--greedy", "--max-tokens", "8", environment=baseline)
    assert "on cpu scalar" in err
    assert run("Once", "--greedy", "--max-tokens", "8")[0] == text
    folder = write_tiny(tmp_path / "m")
    report = json.loads(run("verify", folder, "--json", environment=baseline)[0])
    assert report["ok"] and {row["isa"] for row in report["runs"]} == {"scalar"}


def test_s48_no_openmp_comes_with_the_extension() -> None:
    """Its threads are its own: no symbol of an OpenMP runtime, none loaded by its import."""
    data = Path(_ops.__file__).read_bytes()
    for trace in (b"libgomp", b"libomp", b"libiomp", b"GOMP_", b"__kmpc_", b"omp_get_"):
        assert trace not in data
    if os.path.exists("/proc/self/maps"):
        run_python("""
            import kestrel._ops
            with open("/proc/self/maps") as maps:
                loaded = maps.read()
            assert not [name for name in ("libgomp", "libomp", "libiomp") if name in loaded]
        """)
