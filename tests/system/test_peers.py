"""``python benchmarks/peers`` runs without any peer, and finds its place in the README."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURES = ("decode after 16", "decode of 8 at once", "first token of 16", "prefill of 128")


def test_the_readme_has_one_place_for_the_table():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    marks = re.findall(r"<!-- python benchmarks/peers: (begin|end) -->", text)
    assert marks == ["begin", "end"]


@pytest.mark.slow
def test_kestrel_alone(tmp_path):
    """With interpreters that have no packages for the peers: each is named, with the reason."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    peers = ("llama.cpp", "transformers", "OpenVINO")
    options = [f"--python={name}={bare / 'bin' / 'python'}" for name in peers]
    report = tmp_path / "report.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "peers"), "15M:BF16", "--runs", "1"]
    run = subprocess.run(
        [*command, *options, "--print", "--json", report], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    text = " ".join(run.stdout.split())
    [found] = json.loads(report.read_text())["results"]
    assert set(found["skipped"]) == set(peers)
    checksum = found["checksum"]
    assert re.fullmatch("[0-9a-f]{16}", checksum)
    assert f"`{checksum}` (15M BF16)" in text
    assert all(f"| {name}" in text for name in MEASURES)
    assert "Skipped: OpenVINO, llama.cpp, transformers." in text
