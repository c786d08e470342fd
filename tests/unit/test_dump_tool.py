"""tools/dump_reference.py where torch is not installed."""

from __future__ import annotations

from pathlib import Path

from processes import run_python

ROOT = Path(__file__).resolve().parents[2]

#: None in sys.modules makes an import fail as it does where nothing is installed.
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = None
sys.argv = ["dump_reference.py", *{arguments!r}]
runpy.run_path({tool!r}, run_name="__main__")
"""


def _run(*arguments: str, status: int):
    tool = str(ROOT / "tools" / "dump_reference.py")
    return run_python(WITHOUT_TORCH.format(arguments=arguments, tool=tool), status=status)


def test_help_needs_no_torch() -> None:
    assert _run("--help", status=0).stdout.startswith("usage: dump_reference.py")


def test_without_torch_it_says_what_to_install() -> None:
    said = _run("model", "--ids", "1", "2", "-o", "dump.safetensors", status=2).stderr
    assert "Traceback" not in said
    assert "needs torch and transformers: pip install '.[reference]'" in said
