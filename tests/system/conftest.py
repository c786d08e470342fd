"""Distributions, each built once for all tests that look at them; the program in this process; a
chat template."""

import shutil
import sys
from pathlib import Path

import pytest
from system.builds import copy_tree, execute, make_venv, pip_install
from system.chats import TEMPLATE

BUILD_TOOLS = ("setuptools", "Cython", "build_manpages", "build")


@pytest.fixture(scope="session")
def build_tools() -> None:
    """Skip unless this environment can build without a network."""
    for name in BUILD_TOOLS:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[test]'")


@pytest.fixture(scope="session")
def sdist(build_tools, tmp_path_factory) -> Path:
    """The source distribution, as ``python -m build --sdist`` makes it."""
    folder = tmp_path_factory.mktemp("sdist")
    source = copy_tree(folder / "source")
    command = ("-m", "build", "--sdist", "--no-isolation", "--outdir", folder)
    execute(sys.executable, *command, cwd=source)
    [archive] = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory) -> Path:
    """A wheel built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.unpack_archive(sdist, folder)
    [source] = (path for path in folder.iterdir() if path.is_dir())
    command = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    execute(sys.executable, *command, cwd=source)
    [archive] = folder.glob("*.whl")
    return archive


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory) -> Path:
    """The Python of an environment that has nothing of Kestrel but the wheel."""
    python = make_venv(tmp_path_factory.mktemp("installed") / "venv")
    pip_install(python, wheel, cwd=wheel.parent)
    return python


@pytest.fixture
def template(tmp_path):
    """A file with a chat template: the demo model has none of its own."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture
def outcome(capsys):
    """Run the program in this process: (status, standard output, standard error)."""

    from kestrel.cli import main

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
