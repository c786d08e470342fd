"""Importing Kestrel changes nothing in the process, and loads nothing that is not needed."""

from processes import run_python


def test_importing_kestrel_loads_neither_numpy_nor_native_code():
    run_python("""
        import sys
        before = set(sys.modules)
        import kestrel
        loaded = set(sys.modules) - before
        assert "kestrel._ops" not in loaded and "numpy" not in loaded, loaded
        assert [name for name in loaded if name.startswith("kestrel")] == ["kestrel"], loaded
        wanted = {"load", "Model", "Session", "SamplingParams", "Limits", "errors"}
        assert wanted <= set(dir(kestrel))
        assert "numpy" not in sys.modules
    """)


def test_every_public_name_is_there():
    run_python("""
        import kestrel
        for name in kestrel.__all__:
            assert getattr(kestrel, name) is not None
        from kestrel import Generation, Limits, Model, SamplingParams, Session, errors, load
        assert kestrel.errors.CheckpointError is errors.CheckpointError
        try:
            kestrel.nothing
        except AttributeError as error:
            assert str(error) == "module 'kestrel' has no attribute 'nothing'"
    """)


def test_the_process_is_left_as_it_was():
    # Environment, signal handlers, threads, warnings filters, resource limits, umask.
    run_python("""
        import numpy, os, resource, signal, threading, warnings, locale
        from numpy import float32

        def state():
            limits = [resource.getrlimit(getattr(resource, n)) for n in dir(resource)
                      if n.startswith("RLIMIT_")]
            handlers = [signal.getsignal(s) for s in sorted(signal.valid_signals())]
            return (dict(os.environ), limits, handlers, threading.active_count(), os.getcwd(),
                    list(warnings.filters), locale.setlocale(locale.LC_ALL))

        before = state()
        import kestrel
        import kestrel._ops
        import kestrel.backends.cpu
        assert state() == before
        kestrel.load().generate("Once")
        assert state()[:3] == before[:3]
    """)


def test_subnormal_numbers_survive_the_import_and_a_step():
    # A library linked with -ffast-math flushes them to zero for the whole process.
    run_python("""
        import numpy
        tiny = numpy.float32(2.0**-149)
        def kept():
            return tiny + tiny == numpy.float32(2.0**-148) and 5e-324 / 1.0 > 0
        assert kept()
        import kestrel._ops
        assert kept()
        kestrel.load().generate("Once")
        assert kept()
    """)


def test_the_settings_are_read_once():
    run_python("""
        import os
        from kestrel.runtime import settings
        assert settings().threads == 1
        os.environ["KESTREL_THREADS"] = "7"
        assert settings().threads == 1
    """, KESTREL_THREADS="1")  # fmt: skip
