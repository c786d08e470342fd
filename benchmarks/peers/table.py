"""The comparison as Markdown, and its place in the README."""

from __future__ import annotations

import statistics
from pathlib import Path
from textwrap import wrap

from protocol import KESTREL, MEASURES, NAMES, Comparison

__all__ = ["put_into", "readme_section", "report_lines"]

_BEGIN, _END = "<!-- python benchmarks/peers: begin -->", "<!-- python benchmarks/peers: end -->"


def readme_section(results: list[Comparison], machine: str, runs: int) -> str:
    """The table of medians, with what it was measured on and with."""
    names = [name for name in NAMES if any(name in each.facts for each in results)]
    head = ["", "", KESTREL, "of the limit", *names[1:]]
    lines = [_row(head), "|---|---|" + "---:|" * (len(head) - 2)]
    for each in results:
        title = f"{each.model} {each.dtype}"
        for measure, words in MEASURES.items():
            if each.median(KESTREL, measure) is None:
                continue
            medians = [_number(each.median(name, measure)) for name in names]
            share = f"{each.shares[measure]:.0%}"
            lines.append(_row([title, words, f"**{medians[0]}**", share, *medians[1:]]))
            title = ""
    versions = [next(e.facts[n] for e in results if n in e.facts)["version"] for n in names]
    skipped = sorted({name for each in results for name in each.skipped if name not in names})
    sums = (f"`{each.checksum}` ({each.model} {each.dtype})" for each in results)
    others = max((each.others for each in results if each.others is not None), default=None)
    sentences = [
        f"{machine}. {'; '.join(versions)}.",
        f"Median of {runs} runs by turns, each side in a process of its own.",
        "" if others is None else f"Other processes kept at most {others:.2f} processors busy.",
        f"Skipped: {', '.join(skipped)}." if skipped else "",
        _same_model(results, names),
        f"Checksums of Kestrel's logits: {', '.join(sums)}.",
    ]
    text = " ".join(filter(None, sentences))
    return "\n".join([*lines, "", *wrap(text, 100, break_on_hyphens=False)])


def _same_model(results: list[Comparison], names: list[str]) -> str:
    """How many tokens the peers share with Kestrel where all compute in float32."""
    parts = []
    for name in names[1:]:
        same = [each.same[name] for each in results if each.dtype == "F32" and name in each.same]
        if same:
            parts.append(f"{name} {min(same):.1%}")
    return f"Greedy tokens that are Kestrel's, in F32: {', '.join(parts)}." if parts else ""


def report_lines(each: Comparison) -> list[str]:
    """One comparison in full: medians with the range of the runs."""
    width = max(map(len, MEASURES.values()))
    others = "unknown" if each.others is None else f"{each.others:.2f} processors"
    lines = [f"{each.model} {each.dtype}: logits {each.checksum}; others busy: {others}"]
    for name, reason in each.skipped.items():
        lines.append(f"  {name} skipped: {reason}")
    for name, facts in each.facts.items():
        lines.append(f"  {facts['version']}: {each.same[name]:.1%} of the tokens as Kestrel's")
    for measure, words in MEASURES.items():
        for name in each.facts:
            values = each.values[name][measure]
            if values:
                share = f"  {each.shares[measure]:.0%} of the limit" if name == KESTREL else ""
                spread = f"{_number(statistics.median(values)):>9}"
                spread += f" ({_number(min(values))}..{_number(max(values))})"
                lines.append(f"  {words:{width}}  {name:12} {spread}{share}")
    return lines


def put_into(readme: Path, section: str) -> None:
    """Replace what stands between the two marks. Raises SystemExit without them."""
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"{readme}: expected the lines {_BEGIN!r} and {_END!r}, found no pair")
    readme.write_text(f"{before}{_BEGIN}\n{section}\n{_END}{after}", encoding="utf-8")


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.{0 if value >= 100 else 1}f}"
