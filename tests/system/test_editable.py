"""``pip install -e .``, and what a rebuild compiles."""

import os
import sys
import time

import pytest
from system.builds import copy_tree, execute, make_venv, pip_install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tree(build_tools, tmp_path_factory):
    return copy_tree(tmp_path_factory.mktemp("editable") / "kestrel")


def test_an_editable_install_runs_the_source_folder(tree, tmp_path):
    python = make_venv(tmp_path / "venv")
    pip_install(python, "-e", ".", cwd=tree)
    code = "import kestrel, kestrel._ops as o; print(kestrel.__file__, o.__file__)"
    for path in execute(python, "-c", code, cwd=tmp_path).split():
        assert path.startswith(str(tree / "kestrel"))
    execute(python, "-m", "kestrel", "--max-tokens", "4", "Once", cwd=tmp_path)
    with open(tree / "kestrel" / "dtypes.py", "a") as file:
        file.write("\nEDITED = 'seen'\n")
    code = "from kestrel.dtypes import EDITED; print(EDITED)"
    assert execute(python, "-c", code, cwd=tmp_path).strip() == "seen"


def test_a_rebuild_compiles_what_changed_and_nothing_else(tree):
    def build(**environment: str) -> set[str]:
        """Names of the files that changed. A debug build compiles faster."""
        began = time.time()
        time.sleep(0.05)
        command = (sys.executable, "setup.py", "build_ext", "--inplace")
        execute(*command, cwd=tree, KESTREL_DEBUG="1", **environment)
        written = [*(tree / "build").rglob("*.o"), *(tree / "kestrel").glob("_ops*.so")]
        return {p.name.partition(".")[0] for p in written if p.stat().st_mtime > began} - {
            "probe_scalar"
        }

    every = build()
    assert {"_ops", "run", "isa_table", "linear_f32"} <= every
    assert build() == set()
    os.utime(tree / "native" / "cpu" / "kernels" / "add.c")
    assert build() == {"add", "_ops"}
    os.utime(tree / "kestrel" / "_pack.pxd")
    assert build() == {"_ops"}
    os.utime(tree / "native" / "include" / "kestrel" / "args.h")
    assert build() == every
    assert build(KESTREL_ANNOTATE="1") == every  # another option
    assert build(KESTREL_ANNOTATE="1") == set()
