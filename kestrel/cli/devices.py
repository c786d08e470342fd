"""``kestrel devices``: what this build and this machine can do, and what a run would use."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from kestrel.backends import available
from kestrel.cli.common import print_json
from kestrel.errors import BackendUnavailableError
from kestrel.processors import processor_name, processors
from kestrel.runtime import native_ops, settings

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]


def run(args: "argparse.Namespace") -> int:
    """Look and print; 0, also where a backend is missing."""
    found = _look()
    if args.json:
        print_json(found)
    else:
        print("\n\n".join(_sections(found)))
    return 0


def _look() -> dict[str, object]:
    """Everything, as JSON would have it."""
    backends = [{**asdict(info), "details": dict(info.details)} for info in available()]
    granted = processors()
    asked = settings()
    found: dict[str, object] = {
        "processor": processor_name(),
        "backends": backends,
        "threads": {
            **asdict(granted),
            "chosen": asked.threads or granted.threads,
            "why": f"{asked.threads} by KESTREL_THREADS; the system grants {granted}"
            if asked.threads
            else str(granted),
        },
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name[:8] == "KESTREL_"
        },
        "build": None,
        "instruction_sets": [],
        "kernels": {},
    }
    try:
        ops = native_ops()
    except BackendUnavailableError:
        return found  # the backend's own row says why
    build, usable, missing = ops.build_info(), ops.isas(), ops.missing_isas()
    chosen = asked.isa or usable[-1]
    found["build"] = {"options": build["options"], "instruction_sets": build["isas"]}
    found["instruction_sets"] = [
        {
            "name": name,
            "compiled": name in build["isas"],
            "supported": name in usable,
            "chosen": name == chosen,
            "missing": missing.get(name, ""),
        }
        for name in [*usable, *missing]
    ]
    found["kernels"] = ops.op_table(chosen)
    return found


def _sections(found: dict) -> list[str]:
    yes = {True: "yes", False: "no"}
    backends = [
        (
            info["name"],
            yes[info["available"]],
            info["device"] if info["available"] else info["why"],
        )
        for info in found["backends"]
    ]
    sections = [
        f"processor  {found['processor']}",
        _table(("backend", "available", "what"), backends),
        f"threads    {found['threads']['why']}",
    ]
    if found["instruction_sets"]:
        rows = [
            (row["name"], yes[row["compiled"]], yes[row["supported"]], yes[row["chosen"]],
             row["missing"])
            for row in found["instruction_sets"]
        ]  # fmt: skip
        heading = ("instruction set", "compiled", "supported", "chosen", "what is missing")
        sections.append(_table(heading, rows))
        dtypes = ("F32", "F16", "BF16")
        kernels = [
            (operation, *(variants.get(dtype, "") for dtype in dtypes))
            for operation, variants in found["kernels"].items()
        ]
        sections.append(_table(("kernel", *dtypes), kernels))
        sections.append(f"build options  {found['build']['options'] or 'none'}")
    variables = found["environment"].items()
    lines = [f"{name}={value}" for name, value in variables] or ["no KESTREL_ variable is set"]
    sections.append("environment\n" + "\n".join(f"  {line}" for line in lines))
    return sections


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    table = [heading, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(heading))]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in table
    )
