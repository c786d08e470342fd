"""The first moments of the program: Ctrl-C while packages are imported, and too little memory."""

import os
import resource
import sys
from pathlib import Path

import pytest
from system.command_line import run

import kestrel

#: Python runs it before anything else. The process interrupts itself where a module is imported.
INTERRUPT = """
import os, signal, sys

def interrupt(event, args):
    if event == "import" and args[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize(
    "module",
    [
        "argparse",
        "numpy",
        "_datetime",  # C code of NumPy imports it, and makes an ImportError of what that raises
        "numpy.exceptions",
        "numpy.linalg._umath_linalg",
        "kestrel.engine.request",
        "tokenizers",
    ],
)
def test_ctrl_c_while_packages_are_imported(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT.format(module=module))
    package = Path(kestrel.__file__).resolve().parent.parent
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, package)))}
    out, err = run("Once", "--max-tokens", 3, status=130, environment=environment)
    assert (out, err) == ("", "kestrel: interrupted\n")


#: As above, but from the named module on nothing can be imported any more.
EXHAUST = """
import sys

class Exhausted:
    seen = []

    def find_spec(self, name, path, target=None):
        if self.seen or name == {module!r}:
            self.seen.append(name)
            raise MemoryError

sys.meta_path.insert(0, Exhausted())
"""


@pytest.mark.parametrize("module", ["kestrel.cli.failures", "kestrel.cli.devices", "numpy"])
def test_memory_ends_while_packages_are_imported(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(EXHAUST.format(module=module))
    package = Path(kestrel.__file__).resolve().parent.parent
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, package)))}
    out, err = run("devices", status=3, environment=environment)
    assert out == "" and err.startswith("kestrel: error: out of memory")
    assert len(err.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_no_room_for_the_threads_of_blas():
    def limit():
        resource.setrlimit(resource.RLIMIT_STACK, (1000 * 2**20, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_AS, (700 * 2**20, 700 * 2**20))

    # A thread beside the first has a stack of 1000 MiB: it does not fit.
    for threads, status, end in ((1, 0, "ended by length"), (2, 3, "set KESTREL_THREADS lower")):
        _, err = run(
            "Once", "--max-tokens", 3, "--threads", threads, status=status, preexec_fn=limit
        )
        assert err.rstrip().endswith(end) and "OpenBLAS" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize("mebibytes", [30, 40, 50])
def test_numpy_does_not_fit_into_memory(mebibytes):
    # NumPy and its OpenBLAS map more than 50 MiB; Python alone needs about 15.
    limit = mebibytes * 2**20
    _, err = run(
        "Once", status=3, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    )
    [line] = err.splitlines()
    assert line.startswith("kestrel: error: a library cannot be loaded (") and "ulimit -v" in line
