"""load: the bundled model, options refused by name, what the environment says."""

from __future__ import annotations

import os

import pytest
from api.runs import alone
from api.tiny import write_tiny
from golden.model_readme import greedy_lists
from processes import run_python

import kestrel
from kestrel import Limits, SamplingParams
from kestrel.errors import (
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    ConfigError,
    RequestError,
    UnsupportedIsaError,
)

def test_the_bundled_model_writes_what_its_readme_says(loaded, demo_model):
    assert loaded.folder == demo_model
    params = SamplingParams(temperature=0.0, max_tokens=96)
    entries = [entry for entry in greedy_lists(demo_model) if entry["min_margin"] > 1e-3]
    assert len(entries) == 5
    for entry in entries:
        answer = loaded.generate(entry["prompt"], params)
        assert answer.prompt_ids == entry["prompt_ids"]
        assert answer.ids == entry["greedy_ids"]
        assert answer.text == str(answer) == entry["greedy_text"]
        assert answer.reason == "length" and answer.seed is None
    answers = loaded.generate([entry["prompt"] for entry in entries], params)
    assert [answer.ids for answer in answers] == [entry["greedy_ids"] for entry in entries]


def test_the_reference_backend_agrees(demo_model):
    entry = greedy_lists(demo_model)[0]
    with kestrel.load(str(demo_model), backend="reference") as model:
        answer = model.generate(entry["prompt"], SamplingParams(temperature=0.0, max_tokens=6))
    assert answer.ids == entry["greedy_ids"][:6]


def test_weights_read_into_memory_give_the_same_bits(loaded, demo_model, monkeypatch):
    """mmap=False; and a folder may be named by a relative path."""
    monkeypatch.chdir(demo_model.parent)
    with kestrel.load(demo_model.name, threads=1, mmap=False) as model:
        assert alone(model, [1, 2, 3]) == alone(loaded, [1, 2, 3])


def test_the_null_backend_draws_id_0():
    with kestrel.load(backend="null") as model:
        params = SamplingParams(temperature=0.0, max_tokens=3)
        assert model.generate("Once", params).ids == [0, 0, 0]
        assert not model.session().prefill([1, 2]).any()


@pytest.mark.parametrize(
    "options, error, parts",
    [
        ({"backend": "tpu"}, BackendUnavailableError, ["'tpu'", "cpu, reference, null"]),
        ({"backend": None}, BackendUnavailableError, ["None"]),
        ({"backend": "null", "threads": 2}, BackendUnavailableError, ["threads=2", "'null'"]),
        ({"backend": "reference", "isa": "avx2"}, BackendUnavailableError, ["isa='avx2'"]),
        ({"threads": 0}, ConfigError, ["threads", "1 to 256", "found 0"]),
        ({"threads": 257}, ConfigError, ["threads", "1 to 256", "257"]),
        ({"threads": "2"}, ConfigError, ["threads", "'2'"]),
        ({"threads": True}, ConfigError, ["threads", "True"]),
        ({"isa": "mmx"}, UnsupportedIsaError, ["'mmx'", "scalar"]),
        ({"isa": ""}, UnsupportedIsaError, ["''"]),
        ({"kv_dtype": "int8"}, ConfigError, ["kv_dtype", "float32 or float16", "'int8'"]),
        ({"kv_dtype": ["float16"]}, ConfigError, ["kv_dtype"]),
        ({"limits": {"max_tokens": 5}}, RequestError, ["limits", "kestrel.Limits", "max_tokens"]),
        ({"limits": 0}, RequestError, ["limits", "found 0"]),
        ({"limits": Limits(max_context=1025)}, ConfigError, ["max_context", "1025", "1024"]),
        ({"limits": Limits(cache_bytes=98_303)}, CapacityError, ["98,304", "98,303"]),
        ({"path": "/nowhere"}, CheckpointError, ["/nowhere"]),
    ],
)
def test_options_are_refused_by_name(options, error, parts):
    with pytest.raises(error) as refusal:
        kestrel.load(**options)
    for part in parts:
        assert part in str(refusal.value)


def test_an_unknown_option_is_a_type_error():
    with pytest.raises(TypeError, match="n_threads"):
        kestrel.load(n_threads=2)


def test_auto_is_what_the_environment_says():
    code = "import kestrel; print(kestrel.load().backend.info.name)"
    assert run_python(code, KESTREL_BACKEND="null").stdout == "null\n"
    assert run_python(code, KESTREL_BACKEND="").stdout == "cpu\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_threads_follow_the_affinity_mask():
    """S45: one processor granted, one thread; and the facts are there to be shown."""
    code = """
        import os, kestrel
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        info = kestrel.load().backend.info
        print(info.threads, "|", info.details["granted"])
    """
    threads, granted = run_python(code, KESTREL_THREADS="").stdout.split("|")
    assert int(threads) == 1 and "1" in granted


def test_threads_from_the_environment():
    code = "import kestrel; print(kestrel.load().backend.info.threads)"
    assert run_python(code, KESTREL_THREADS="2").stdout == "2\n"


def test_a_tied_head_that_is_in_the_file_too(tmp_path):
    """S05: one copy is used, and the notes say so."""
    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    folder = write_tiny(tmp_path / "tied", add_head, tie_word_embeddings=True)
    with kestrel.load(folder) as model:
        matrices = [v.name for v in model.program.values() if v.shape == (64, 32)]
        assert matrices == ["model.embed_tokens.weight"]
        assert any("lm_head.weight" in note for note in model.notes)
