"""What a source distribution and a wheel hold, and that a bare environment runs from the wheel."""

import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from system.builds import ROOT, execute, told

import kestrel

pytestmark = pytest.mark.slow


def files_below(folder: str, *suffixes: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts
    }


def test_the_sdist_holds_all_that_a_build_and_the_tests_need(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = files_below("native", ".c", ".h", ".def", ".md")
    wanted |= files_below("kestrel", ".py", ".pyx", ".pxi", ".pxd", ".pyi")
    wanted |= files_below("kestrel/data", ".json", ".safetensors", ".md")
    wanted |= files_below("tests", ".py", ".c", ".h", ".json", ".safetensors", ".npz")
    wanted |= {"LICENSE", "README.md", "setup.py", "pyproject.toml", "man/kestrel.1"}
    assert wanted - names == set()
    assert not [name for name in names if name.endswith((".so", ".pyc", ".o"))]


def test_the_wheel_holds_the_package_and_nothing_of_the_build(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"kestrel-{kestrel.__version__}.dist-info/METADATA").decode()
        entries = archive.read(f"kestrel-{kestrel.__version__}.dist-info/entry_points.txt").decode()
    assert files_below("kestrel", ".py", ".pyi", ".pxd") - names == set()
    assert files_below("kestrel/data", ".json", ".safetensors", ".md") - names == set()
    assert "kestrel/py.typed" in names
    assert f"kestrel-{kestrel.__version__}.data/data/share/man/man1/kestrel.1" in names
    [extension] = [name for name in names if name.endswith(".so")]
    assert extension.startswith("kestrel/_ops.")
    assert not [name for name in names if name.endswith((".c", ".h", ".pyx", ".o"))]
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"kestrel"}
    assert re.search(r"^kestrel *= *kestrel\.cli:main$", entries, re.M)
    assert "Requires-Python: >=3.10\n" in metadata
    assert "License-Expression: MIT\n" in metadata
    needed = set(re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.M))
    assert needed == {"numpy", "safetensors", "tokenizers", "jinja2", "tqdm"}


def test_a_bare_environment_generates_text_and_verifies(installed, tmp_path):
    script = installed.parent / "kestrel"
    story = ("--greedy", "--max-tokens", "12", "Once upon a time")
    by_script = execute(script, *story, cwd=tmp_path)
    by_module = execute(installed, "-m", "kestrel", *story, cwd=tmp_path)
    assert told(by_script) == told(by_module)
    where = execute(
        installed, "-c", "import kestrel._ops as o; print(o.__file__, o.isas())", cwd=tmp_path
    )
    assert where.startswith(str(installed.parent.parent)) and "['scalar']" in where
    man = installed.parent.parent / "share" / "man" / "man1" / "kestrel.1"
    assert man.read_bytes() == (ROOT / "man" / "kestrel.1").read_bytes()


def test_the_wheel_is_tagged_for_this_python_and_machine(wheel):
    import sysconfig

    assert wheel.name.startswith(f"kestrel-{kestrel.__version__}-cp")
    assert wheel.stem.endswith(sysconfig.get_platform().replace("-", "_").replace(".", "_"))
    assert Path(wheel).stat().st_size < 40e6
