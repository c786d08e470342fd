"""``kestrel inspect``: the model as understood, with where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kestrel.cli.common import print_json, visible
from kestrel.cli.inputs import read_template
from kestrel.errors import RequestError
from kestrel.hub import model_folder
from kestrel.inspection import inspect_folder
from kestrel.model import DEMO_MODEL
from kestrel.text.chat_template import explain_chat
from kestrel.text.prompt_tokens import Origin, explain

if TYPE_CHECKING:
    import argparse

    from kestrel.inspection import Prompt

__all__ = ["run"]

_ORIGINS = {
    Origin.TEXT: "",
    Origin.ADDED: "added by the tokenizer",
    Origin.TEMPLATE: "control word of the template",
    Origin.CONTENT: "control word in the text",
    Origin.CONTROL: "control word of the template or in the text",
}


def run(args: "argparse.Namespace") -> int:
    """Print the report; 0 when the folder can be used."""
    prompt = _prompt(args)
    folder = model_folder(args.model, args.refresh) or DEMO_MODEL
    report = inspect_folder(folder, mmap=not args.no_mmap, prompt=prompt)
    if args.json:
        print_json(report)
    else:
        print(visible("\n\n".join(_sections(report))))
    return 0


def _prompt(args: "argparse.Namespace") -> "Prompt | None":
    """What gives the tokens of --prompt or --message, or None without either.

    Raises RequestError for options that say how, without either to say of what.
    """
    plain = args.plain_content
    for option, value in (("--system", args.system), ("--chat-template", args.chat_template)):
        if value is not None and args.message is None:
            raise RequestError(f"{option}: expected --message TEXT too, found none")
    if args.prompt is not None:
        return lambda tokenizer: explain(tokenizer, args.prompt, plain_content=plain)
    if args.message is None:
        if plain:
            raise RequestError("--plain-content: expected --prompt or --message too, found none")
        return None
    template = read_template(args)
    messages = [] if args.system is None else [{"role": "system", "content": args.system}]
    messages.append({"role": "user", "content": args.message})
    return lambda tokenizer: explain_chat(
        tokenizer, messages, template=template, plain_content=plain
    )


def _sections(report: dict) -> Iterable[str]:
    yield _summary(report)
    fields = ((f["name"], f["value"], f["source"]) for f in report["config"])
    rows = [(name, _shown(v) if isinstance(v, list) else v, source) for name, v, source in fields]
    yield _titled("config", rows)
    yield _titled("files", [(f["name"], f"{f['bytes']:,} bytes") for f in report["files"]])
    if report["tokenizer"] is not None:
        yield _titled("tokenizer", [(k, _shown(v)) for k, v in report["tokenizer"].items()])
    generation = report["generation"]
    defaults = [
        (row["name"], row["value"], row["source"])
        for row in generation["defaults"]
        if row["source"] != "default"
    ]
    yield _titled("generation defaults (every other option is off)", defaults)
    ends = [
        (row["id"], _shown(row["token"]), "; ".join(row["sources"]))
        for row in generation["end_tokens"]
    ]
    yield _titled("end tokens", ends)
    if report["prompt"] is not None:
        rows = [
            (index, row["id"], _shown(row["text"]), _ORIGINS[row["origin"]])
            for index, row in enumerate(report["prompt"])
        ]
        yield _titled("prompt (position, id, text; where a control token comes from)", rows)
    yield "\n".join(["notes", *(f"  {note}" for note in report["notes"] or ["none"])])


def _summary(report: dict) -> str:
    rows = [
        ("model", report["folder"]),
        ("family", report["model_type"]),
        ("parameters", f"{report['parameters']:,}"),
    ]
    if hub := report["hub"]:
        names = ", ".join(hub["revisions"]) or "no branch or tag"
        rows.insert(1, ("hub", f"{hub['id']}, commit {hub['commit']}, in the cache as {names}"))
    for dtype, row in report["weights"].items():
        rows.append(("weights", f"{dtype}: {row['bytes']:,} bytes in {row['tensors']} tensors"))
    sizes = report["kv_cache_bytes_per_token"].items()
    costs = ", ".join(f"{size:,} bytes in {name}" for name, size in sizes)
    rows.append(("KV cache", f"a token takes {costs}"))
    return _aligned(rows)


def _titled(title: str, rows: list[tuple]) -> str:
    return f"{title}\n{_aligned(rows or [('none',)], indent='  ')}"


def _aligned(rows: list[tuple], indent: str = "") -> str:
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = ("  ".join(f"{c:{w}}" for c, w in zip(row, widths)) for row in table)
    return "\n".join(indent + line.rstrip() for line in lines)


def _shown(value: object) -> str:
    """A value of many parts on one line; long lists are cut and counted."""
    if value is None or value == [] or value == {}:
        return "none"
    if isinstance(value, dict):
        inner = (
            f"{key} ({_shown(each)})" if isinstance(each, dict) else f"{key} {_shown(each)}"
            for key, each in value.items()
        )
        return ", ".join(inner)
    if isinstance(value, list):
        more = f" and {len(value) - 8} more" if len(value) > 8 else ""
        return ", ".join(_shown(each) for each in value[:8]) + more
    return repr(value) if isinstance(value, str) else str(value)
