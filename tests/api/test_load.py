"""load: the bundled model, options refused by name, memory, and what closing leaves."""

from __future__ import annotations

import gc
import os
import pickle
import re
import weakref

import pytest
from api.tiny import write_tiny
from golden.model_readme import greedy_lists
from processes import run_python

import kestrel
from kestrel import Limits, SamplingParams
from kestrel.errors import (
    BackendError,
    BackendUnavailableError,
    CapacityError,
    CheckpointError,
    ConfigError,
    RequestError,
    UnsupportedIsaError,
)

NEEDS_PROC = pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps"), reason="no /proc: memory cannot be looked at"
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


def test_closing(demo_model):
    model = kestrel.load(threads=2)
    session, stream = model.session(), model.stream("Once", SamplingParams(temperature=0.0))
    session.prefill([1, 2, 3])
    next(stream)
    model.close()
    model.close()
    for call in (
        model.session,
        lambda: model.generate("Once"),
        lambda: model.stream("Once"),
        lambda: model.score("Once upon"),
        lambda: model.trace("Once"),
        lambda: session.decode(1),
        lambda: next(stream),
    ):
        with pytest.raises(BackendError, match="closed"):
            call()
    assert session.tokens == [1, 2, 3]


@pytest.mark.parametrize("backend", ["reference", "null"])
def test_closing_other_backends(backend):
    with kestrel.load(backend=backend) as model:
        session = model.session()
    with pytest.raises(BackendError, match="closed"):
        session.prefill([1])
    with pytest.raises(BackendError, match="closed"):
        model.generate("Once")


def test_models_cannot_be_pickled(loaded):
    with pytest.raises(TypeError, match="load it in each process"):
        pickle.dumps(loaded)


@NEEDS_PROC
def test_loading_again_and_again_leaks_nothing():
    code = """
        import gc, os, kestrel
        params = kestrel.SamplingParams(temperature=0.0, max_tokens=2)

        def counts():
            gc.collect()
            with open("/proc/self/maps") as maps:
                files = sum("model.safetensors" in line for line in maps)
            return len(os.listdir("/proc/self/task")), files, len(os.listdir("/proc/self/fd"))

        def once(close):
            model = kestrel.load(threads=2)
            model.generate("Once", params)
            if close:
                model.close()

        once(True)
        before = counts()
        for i in range(50):
            once(i % 2 == 0)  # the garbage collector has to do without close, too
        assert before == counts(), (before, counts())
    """
    run_python(code)


@NEEDS_PROC
def test_traces_and_scores_leak_nothing():
    code = """
        import gc, kestrel
        from processes import resident_bytes
        model = kestrel.load(threads=1)
        def work():
            model.trace("Once upon a time", "*")
            model.score("Once upon a time")
            model.session().prefill([1, 2, 3])
        for _ in range(5):
            work()
        gc.collect()
        objects, before = len(gc.get_objects()), resident_bytes()
        for _ in range(30):
            work()
        gc.collect()
        # A program of the demo model has some 200 values: one that stayed would show 30 times.
        assert len(gc.get_objects()) < objects + 200, len(gc.get_objects()) - objects
        assert resident_bytes() < before + 4_000_000, (before, resident_bytes())
    """
    run_python(code)


@NEEDS_PROC
def test_weights_stay_shared_pages_of_the_file(loaded):
    """A loaded BF16 model costs its file's size once: nothing of the mapping was copied."""
    loaded.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=4))
    with open("/proc/self/smaps") as file:
        text = file.read()
    path = re.escape(str(loaded.folder / "model.safetensors"))
    mappings = re.findall(rf"^\S+ \S+ \S+ \S+ \S+ +{path}$\n((?:^\w+:.*\n)+)", text, re.M)
    assert mappings
    size = (loaded.folder / "model.safetensors").stat().st_size
    for mapping in mappings:
        kilobytes = dict(re.findall(r"^(\w+): +(\d+) kB", mapping, re.M))
        assert int(kilobytes["Private_Dirty"]) == 0 and int(kilobytes["Anonymous"]) == 0
        assert int(kilobytes["Rss"]) * 1024 <= size + 65536


@NEEDS_PROC
def test_a_million_positions_on_a_small_machine(tmp_path):
    """S38: memory grows by pages, not by what config.json advertises."""
    folder = write_tiny(tmp_path / "long", max_position_embeddings=1048576)
    code = f"""
        import kestrel
        from processes import resident_bytes
        kestrel.load().generate("Once", kestrel.SamplingParams(max_tokens=1))
        before = resident_bytes()
        model = kestrel.load({str(folder)!r})
        assert model.context_limit == 1048576, model.notes
        # A position of the cache: 2 layers, keys and values, 2 heads of 8 float32, 256 bytes.
        assert model.cache.nbytes >= 1048576 * 256
        session = model.session()
        session.prefill([1, 2, 3, 4, 5])
        for token in range(40):
            session.decode(token)
        grown = resident_bytes() - before
        assert grown < 64_000_000, grown
    """
    run_python(code)


def test_a_tied_head_that_is_in_the_file_too(tmp_path):
    """S05: one copy is used, and the notes say so."""
    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    folder = write_tiny(tmp_path / "tied", add_head, tie_word_embeddings=True)
    with kestrel.load(folder) as model:
        matrices = [v.name for v in model.program.values() if v.shape == (64, 32)]
        assert matrices == ["model.embed_tokens.weight"]
        assert any("lm_head.weight" in note for note in model.notes)


def test_exit_while_a_stream_is_open():
    code = """
        import kestrel
        model = kestrel.load(threads=2)
        stream = model.stream("Once upon a time", kestrel.SamplingParams(temperature=0.0))
        session = model.session()
        session.prefill([1, 2, 3])
        print(next(stream).id)
    """
    result = run_python(code)
    assert result.stdout == "460\n" and result.stderr == ""


def test_exit_while_a_thread_is_computing():
    code = """
        import threading, kestrel
        model = kestrel.load(threads=2)
        started = threading.Event()
        def work():
            stream = model.stream("Once upon a time", kestrel.SamplingParams(temperature=0.0))
            for event in stream:
                started.set()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    """
    assert run_python(code).stderr == ""


def test_a_dropped_model_is_freed_at_once():
    """Without a cycle: threads and mappings do not wait for the collector."""
    model = kestrel.load(threads=2)
    model.generate("Once", SamplingParams(temperature=0.0, max_tokens=1))
    session, alive = model.session(), weakref.ref(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()
    assert session.prefill([1, 2]).shape == (4096,), "a session keeps what it needs"
