"""Build Kestrel from a copy of the repository, and install it into environments of its own.

Everything is built by the tools of the environment that runs the tests: no network, no isolation.
One instruction set is enough to judge the packaging, and compiles in a third of the time.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What a clone does not hold.
NOT_COPIED = shutil.ignore_patterns(
    ".git", "build", "dist", "*.egg-info", "*.so", "__pycache__", ".pytest_cache", ".venv"
)


def execute(*command: object, cwd: Path, **environment: str) -> str:
    """Run a command; what it printed. Fails with that when the command fails."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KESTREL_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, "KESTREL_ISAS": "scalar", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout[-4000:]}"
    return done.stdout


def told(output: str) -> list[str]:
    """What the model wrote, without the settings and figures around it."""
    lines = [line for line in output.splitlines() if not line.startswith("kestrel: ")]
    assert lines and lines[0].startswith("Once upon a time"), output
    return lines


def copy_tree(target: Path) -> Path:
    """The repository as a clone would have it: nothing built."""
    shutil.copytree(ROOT, target, ignore=NOT_COPIED)
    return target


def make_venv(folder: Path) -> Path:
    """An environment with links to this one's packages, all but Kestrel; its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=paths))
    for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(packages).iterdir():
            if "kestrel" not in entry.name and not (own / entry.name).exists():
                (own / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def pip_install(python: Path, *arguments: object, cwd: Path, **environment: str) -> str:
    """``pip install`` into another environment, without network."""
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-v", *offline)
    return execute(*pip, *arguments, cwd=cwd, **environment)
