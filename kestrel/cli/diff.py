"""``kestrel diff``: every stage of the forward pass against a reference, each within its bound."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy

from kestrel.cli.common import describe_model, load_model, note, print_json
from kestrel.diff import Dump, compare_trace, first_beyond, table
from kestrel.errors import RequestError

if TYPE_CHECKING:
    import argparse

    from kestrel.model import Model

__all__ = ["run"]

_DEFAULT_PROMPT = "Once upon a time"
_KV_TYPES = {"float32": numpy.float32, "float16": numpy.float16}


def run(args: "argparse.Namespace") -> int:
    """Compare and print; 0 when every stage is within its bound, else 1."""
    dump = None if args.reference is None else Dump.read(args.reference)
    model = load_model(args)
    ids = _ids(args, model, dump)
    ours = model.trace(ids)
    if dump is None:
        name = args.against or "reference"
        # Options of the cpu backend that another one would refuse stay with ours.
        changes = {} if name == "cpu" else {"threads": None, "isa": None}
        with load_model(args, backend=name, refresh=False, **changes) as other:
            theirs = other.trace(ids)
        against = f"backend {name}"
    else:
        theirs = dump
        versions = ", ".join(f"{key} {value}" for key, value in dump.versions.items())
        against = f"{args.reference} ({versions})"
    rows = compare_trace(ours, theirs, model.config, model.weights, _KV_TYPES[args.kv_dtype])
    beyond = first_beyond(rows)
    if args.json:
        print_json(
            {
                "model": str(model.folder),
                "against": against,
                "ids": ids,
                "ok": beyond is None,
                "first_beyond": None if beyond is None else beyond.stage,
                "stages": [{**asdict(row), "ok": row.ok} for row in rows],
            }
        )
    else:
        note(describe_model(model))
        note(f"{len(ids)} tokens, against {against}")
        print(table(rows))
    return 0 if beyond is None else 1


def _ids(args: "argparse.Namespace", model: "Model", dump: Dump | None) -> list[int]:
    """The ids to run: those of the dump, which a prompt given beside it must match."""
    given = args.ids
    if args.prompt is not None:
        given = model.encode(args.prompt)
    if dump is None:
        return model.encode(_DEFAULT_PROMPT) if given is None else given
    if given is not None and given != dump.ids:
        raise RequestError(
            f"{args.reference}: expected a dump of the prompt's ids {given}, found {dump.ids}: "
            "make it anew with tools/dump_reference.py, or leave the prompt out"
        )
    return dump.ids
