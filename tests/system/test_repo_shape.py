"""The shape of the repository: small files, short lines, no reference stack in the package."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Suffix -> most lines. A file that must be longer is listed below, with the reason.
MAX_LINES = {".py": 300, ".pyx": 300, ".c": 250, ".h": 250}
MAX_COLUMNS = {".py": 100, ".pyx": 100, ".pxd": 100}
LONGER: dict[str, str] = {}


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: the list of files comes from git")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).exists()]


def test_files_stay_small():
    too_long = {}
    for path in tracked():
        limit = MAX_LINES.get(path.suffix)
        name = str(path.relative_to(ROOT))
        if limit and name not in LONGER:
            lines = len(path.read_text().splitlines())
            if lines > limit:
                too_long[name] = lines
    assert not too_long, f"split these files, or say in LONGER why not: {too_long}"


def test_lines_stay_short():
    too_wide = []
    for path in tracked():
        limit = MAX_COLUMNS.get(path.suffix)
        if limit:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > limit:
                    too_wide.append(f"{path.relative_to(ROOT)}:{number} ({len(line)})")
    assert not too_wide, too_wide


def test_no_torch_transformers_or_llama_cpp_in_the_package():
    stacks = "torch|transformers|llama_cpp|mlx|onnx"
    pattern = re.compile(rf"^\s*(?:import|from)\s+({stacks})\w*\b", re.M)
    found = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.is_relative_to(ROOT / "kestrel")
        and path.suffix in (".py", ".pyx")
        and pattern.search(path.read_text())
    ]
    assert not found, f"torch and transformers serve as references in tests only: {found}"


def test_flags_that_change_arithmetic_are_not_used():
    text = (ROOT / "setup.py").read_text()
    for flag in ("-ffast-math", "-Ofast", "-fopenmp", "-funsafe-math-optimizations"):
        assert flag not in text
