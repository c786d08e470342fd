"""``pip install . && python -m kestrel`` in a clone's root, where ./kestrel is found first."""

import shutil
import subprocess
from pathlib import Path

import pytest
from system.builds import copy_tree, execute, make_venv, told

pytestmark = pytest.mark.slow
WHERE = "import kestrel, kestrel.dtypes as d; print(kestrel.__file__, d.__file__)"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A source tree in which nothing is built."""
    return copy_tree(tmp_path_factory.mktemp("clone") / "kestrel-clone")


def test_in_the_clone_the_installed_package_runs(installed, clone):
    story = ("--greedy", "--max-tokens", "12", "Once upon a time")
    here = execute(installed, "-m", "kestrel", *story, cwd=clone)
    elsewhere = execute(installed, "-m", "kestrel", *story, cwd=clone.parent)
    assert told(here) == told(elsewhere)


def test_code_and_extension_come_from_one_build(installed, clone):
    for path in execute(installed, "-c", WHERE, cwd=clone).split():
        assert path.startswith(str(installed.parent.parent))
    # Also when the source has moved on since.
    moved = clone / "kestrel" / "__init__.py"
    text = moved.read_text()
    try:
        moved.write_text(text.replace('__version__ = "', '__version__ = "9.'))
        version = execute(installed, "-c", "import kestrel; print(kestrel.__version__)", cwd=clone)
    finally:
        moved.write_text(text)
    assert not version.startswith("9.")


def test_a_built_source_tree_runs_itself(installed, clone):
    code = "import kestrel._ops as o; print(o.__file__)"
    built = execute(installed, "-c", code, cwd=clone).strip()
    inplace = Path(shutil.copy(built, clone / "kestrel"))
    try:
        assert execute(installed, "-c", code, cwd=clone).strip() == str(inplace)
        for path in execute(installed, "-c", WHERE, cwd=clone).split():
            assert path.startswith(str(clone))
    finally:
        inplace.unlink()


def test_without_an_installed_copy_the_cpu_backend_says_what_to_do(clone, tmp_path):
    python = make_venv(tmp_path / "venv")
    code = "import kestrel; print(kestrel.load(backend='{}').backend.info.name)"
    assert execute(python, "-c", code.format("reference"), cwd=clone).strip() == "reference"
    done = subprocess.run(
        [str(python), "-c", code.format("cpu")], cwd=clone, capture_output=True, text=True
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kestrel.errors.BackendUnavailableError: the cpu backend is not built")
    assert "run `pip install .` in the source folder" in last
