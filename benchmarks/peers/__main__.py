"""Kestrel beside llama.cpp, transformers and OpenVINO, on the same cores, in one run.

    python benchmarks/peers                                    # all models: the README's table
    python benchmarks/peers 15M:BF16 path/to/folder --print    # some, README untouched

A peer that is not installed is skipped, and named. Peers may live in environments of their own:
`--python llama.cpp=PYTHON`. Development only; what each side needs, beside Kestrel:

    llama.cpp      gguf here, llama-cpp-python there: builds from source, for this processor
    transformers   pip install '.[reference]'
    OpenVINO       optimum-intel, openvino, and torch to convert with

Take the README's table on an idle machine: with its line of versions it says how busy others were.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(_ROOT / name) for name in ("benchmarks", "tests", ".")]

from prepare import Unsupported  # noqa: E402
from protocol import KESTREL, NAMES, compare  # noqa: E402
from table import put_into, readme_section, report_lines  # noqa: E402

from kestrel.processors import processor_name, processors  # noqa: E402

#: The shapes of stories15M, SmolLM2-135M and Llama-3.2-1B: a model that stays in the caches, one
#: that does not, and one of a useful size.
DEFAULT = ("15M:F32", "15M:BF16", "135M:F32", "135M:BF16", "1B:BF16")


def main() -> None:
    """Parse, measure, print, rewrite the README's section."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "models",
        nargs="*",
        default=DEFAULT,
        metavar="MODEL[:DTYPE]",
        help="a shape of benchmarks/models.py (random weights) or a folder, F32 or BF16; "
        f"default: {' '.join(DEFAULT)}",
    )
    parser.add_argument("--threads", type=int, default=processors().threads)
    parser.add_argument("--runs", type=int, default=5, help="measured turns (default 5)")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="SIDE=PYTHON",
        help=f"the interpreter that has a peer, one of {', '.join(NAMES[1:])}",
    )
    parser.add_argument("--json", type=Path, help="write every figure of every run here")
    parser.add_argument("--print", action="store_true", help="print, leave README.md as it is")
    args = parser.parse_args()
    pythons = dict(each.partition("=")[::2] for each in args.python)
    if unknown := pythons.keys() - set(NAMES):
        parser.error(f"--python: expected one of {', '.join(NAMES)}, found {', '.join(unknown)}")
    results = []
    for each in args.models:
        model, _, dtype = each.partition(":")
        with tempfile.TemporaryDirectory(prefix="kestrel-peers-") as scratch:
            given = (model, dtype or "BF16", pythons, args.threads, args.runs, Path(scratch))
            try:
                results.append(compare(*given))
            except Unsupported as reason:
                parser.error(str(reason))
        print("\n".join(report_lines(results[-1])) + "\n", flush=True)
    threads = results[0].facts[KESTREL]["threads"]
    machine = f"{processor_name()}, {threads} thread{'s' * (threads != 1)}"
    section = readme_section(results, machine, args.runs)
    if args.json:
        report = [asdict(each) for each in results]
        args.json.write_text(json.dumps({"machine": machine, "results": report}, indent=1))
    if args.print:
        print(section)
    else:
        put_into(_ROOT / "README.md", section)


if __name__ == "__main__":
    main()
