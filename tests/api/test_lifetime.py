"""What a model takes, keeps and gives back: threads, mappings, memory, and how it ends."""

from __future__ import annotations

import gc
import os
import pickle
import re
import weakref

import pytest
from api.tiny import write_tiny
from processes import run_python

import kestrel
from kestrel import SamplingParams
from kestrel.errors import BackendError

NEEDS_PROC = pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps"), reason="no /proc: memory cannot be looked at"
)


def test_closing():
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
        # Not Private_Dirty: a file that was just written has dirty pages in the page cache.
        assert int(kilobytes["Anonymous"]) == 0
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
