"""``kestrel devices``: what this build and this machine can do, and what a run would use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from kestrel.backends import available
from kestrel.cli.common import print_json
from kestrel.errors import BackendUnavailableError, ConfigError
from kestrel.processors import processor_name, processors
from kestrel.runtime import Settings, native_ops, read_settings, settings

if TYPE_CHECKING:
    import argparse

__all__ = ["run"]


def run(args: "argparse.Namespace") -> int:
    """Look and print; 0, also where a backend is missing or a variable of the environment wrong."""
    problems = _problems()
    environment = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith("KESTREL_")
    }
    with _unset(problems):
        found = {**_look(), "environment": environment, "problems": list(problems.values())}
    if args.json:
        print_json(found)
    else:
        print("\n\n".join(_sections(found)))
    return 0


def _problems() -> dict[str, str]:
    """What is wrong with the variables that a run reads, by name."""
    problems = {}
    for field in fields(Settings):
        name = f"KESTREL_{field.name.upper()}"
        try:
            read_settings({name: os.environ.get(name, "")})
        except ConfigError as error:
            problems[name] = str(error)
    isa = os.environ.get("KESTREL_ISA")
    with contextlib.suppress(BackendUnavailableError):
        ops = native_ops()
        missing = ops.missing_isas()
        if isa and isa not in ops.isas():
            why = f"cannot be used: {missing[isa]}" if isa in missing else "is unknown"
            problems["KESTREL_ISA"] = (
                f"KESTREL_ISA: expected one of {', '.join(ops.isas())}, found {isa!r}, which {why}"
            )
    return problems


@contextlib.contextmanager
def _unset(names: Collection[str]) -> Iterator[None]:
    """Without these variables: what is shown is what a run could use."""
    if not names:
        yield
        return
    removed = {name: os.environ.pop(name) for name in names}
    settings.cache_clear()
    try:
        yield
    finally:
        os.environ.update(removed)
        settings.cache_clear()


def _look() -> dict[str, object]:
    """Everything, as JSON would have it."""
    backends = [{**asdict(info), "details": dict(info.details)} for info in available()]
    granted = processors()
    asked = settings()
    found: dict[str, object] = {
        "processor": processor_name(),
        "backends": backends,
        "auto": asked.backend or "cpu",
        "threads": {
            **asdict(granted),
            "chosen": asked.threads or granted.threads,
            "why": f"{asked.threads} by KESTREL_THREADS; the system grants {granted}"
            if asked.threads
            else str(granted),
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
        f"auto       --backend auto means {found['auto']}",
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
    if found["problems"]:
        lines = "\n".join(f"  {problem}" for problem in found["problems"])
        sections.append(f"wrong in the environment, and left out above; a run stops at it\n{lines}")
    return sections


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    table = [heading, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(heading))]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip() for row in table
    )
