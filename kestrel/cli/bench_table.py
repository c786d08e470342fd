"""What ``kestrel bench`` prints for people: a table, and bars as wide as the terminal allows."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from kestrel.integers import counted

__all__ = ["table"]

#: Of the parts kernels, barriers and host, and what stands for them where the encoding lacks them.
_BLOCKS, _ASCII = "█▒░", "#=."
_WIDEST = 120
#: Processors that others may keep busy without a word about it.
_QUIET = 0.05
_A_TOKEN = "decode, a token"


def table(reports: Sequence[dict]) -> str:
    """The reports of one model, one for each thread count."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    marks = _marks()
    sections = []
    for report in reports:
        if len(reports) > 1:
            sections.append(_threads(report) + ":")
        sections += _sections(report, width, marks)
    if len(reports) > 1:
        sections.append(_comparison(reports, width, marks))
    sections.append(_about(reports))
    return "\n\n".join(sections)


def _marks() -> str:
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII
    return _BLOCKS


def _rows(report: dict) -> list[tuple[str, dict]]:
    protocol, phases = report["protocol"], report["phases"]
    return [
        (f"prefill {protocol['prefill_tokens']}", phases["prefill"]),
        (f"first token {protocol['prompt_tokens']}", phases["first_token"]),
        (f"decode {protocol['new_tokens']}", phases["decode"]),
    ]


def _sections(report: dict, width: int, marks: str) -> list[str]:
    rows = _rows(report)
    label = max(len(name) for name, _ in rows)
    lines = [
        f"{'tokens/s':{label}} {'median':>7} {'min':>7} {'max':>7} {'rate':>13} {'limit':>6} "
        f"{'share':>6}  bound by"
    ]
    for name, phase in rows:
        spread = phase["tokens_per_second"]
        cells = " ".join(f"{_number(spread[key]):>7}" for key in ("median", "min", "max"))
        lines.append(f"{name:{label}} {cells} {_against_limit(phase)}")
    sections = ["\n".join(lines)]
    if report["limits"] is not None:
        sections.append(_times(rows, width, marks))
    sections.append(_notes(report))
    return sections


def _against_limit(phase: dict) -> str:
    if "share" not in phase:
        return f"{_number(phase['gigabytes_per_second']):>8} GB/s"
    rate = f"{_number(phase['rate'])} {phase['unit']}"
    limit = _number(phase["limit"])
    return f"{rate:>13} {limit:>6} {phase['share']:6.1%}  {phase['bound_by']}"


def _times(rows: list[tuple[str, dict]], width: int, marks: str) -> str:
    """How long each phase takes, and a stacked bar of what that goes to."""
    rows = [*rows[:-1], (_A_TOKEN, rows[-1][1])]
    label = max(len(name) for name, _ in rows)
    names = ("kernels", "barriers", "host")
    legend = " ".join(f"{mark} {name}" for mark, name in zip(marks, names))
    head = " ".join(f"{name:>8}" for name in names)
    lines = [f"{'time, ms':{label}} {'median':>7} {head}  {legend}"]
    for name, phase in rows:
        time = phase["milliseconds"]["median"]
        if name is _A_TOKEN:
            time /= phase["tokens"]
        parts = [phase["time"][part] for part in names]
        cells = " ".join(f"{part:8.1%}" for part in parts)
        front = f"{name:{label}} {_number(time):>7} {cells}  "
        lines.append(front + _stacked(parts, width - len(front), marks))
    return "\n".join(lines)


def _comparison(reports: Sequence[dict], width: int, marks: str) -> str:
    """Tokens per second of each phase by thread count, the longest bar for the fastest."""
    rows = _rows(reports[0])
    label = max(len(name) for name, _ in rows)
    lines = [f"{'tokens/s':{label}} {'threads':>7} {'median':>7} {'share':>6}"]
    for index, (name, _) in enumerate(rows):
        phases = [_rows(report)[index][1] for report in reports]
        rates = [phase["tokens_per_second"]["median"] for phase in phases]
        for report, phase, rate in zip(reports, phases, rates):
            share = f"{phase['share']:6.1%}" if "share" in phase else ""
            threads = report["machine"]["threads"]
            front = f"{name:{label}} {threads:7} {_number(rate):>7} {share:6}  "
            lines.append(front + _stacked([rate / max(rates)], width - len(front), marks))
            name = ""
    return "\n".join(lines)


def _stacked(parts: Sequence[float], width: int, marks: str) -> str:
    """A bar of ``width`` for 1, at least 10; each part ends at the nearest column."""
    width = max(width, 10)
    bar, whole = "", 0.0
    for mark, part in zip(marks, parts):
        whole += part
        bar += mark * (round(whole * width) - len(bar))
    return bar


def _notes(report: dict) -> str:
    first, limits = report["first_token_ms"], report["limits"]
    lines = [
        f"first token, ms: {first['median']:,.2f} ({first['min']:,.2f} to {first['max']:,.2f})",
        f"weights: {report['weight_bytes_per_step'] / 1e6:,.1f} MB a step, "
        f"{report['decode_weight_gigabytes_per_second']:.1f} GB/s while decoding",
    ]
    if limits is not None:
        lines.append(
            f"limits: {limits['read_gigabytes_per_second']:,.1f} GB/s "
            f"({limits['read_bytes'] / 1e6:,.1f} MB over and over), "
            f"{limits['gigaflops_per_second']:,.1f} GFLOP/s (multiply-adds)"
        )
    others = report["processors_busy_with_others"]
    if others is not None and others > _QUIET:
        lines.append(
            f"others: other processes kept {others:.2f} processors busy; read these figures with "
            "care"
        )
    return "\n".join(lines)


def _about(reports: Sequence[dict]) -> str:
    report = reports[0]
    machine, protocol = report["machine"], report["protocol"]
    device = " ".join(filter(None, (machine["backend"], machine["isa"])))
    threads = " or ".join(map(_threads, reports))
    return (
        f"logits checksum: {report['logits_checksum']}\n"
        f"{machine['processor']}; {device}, {threads}; cache {machine['kv_dtype']}; "
        f"{protocol['warmup']} warm-up and {counted(protocol['runs'], 'measured run')}"
    )


def _threads(report: dict) -> str:
    return counted(report["machine"]["threads"], "thread")


def _number(value: float) -> str:
    return f"{value:,.{2 if value < 10 else 1 if value < 1000 else 0}f}"
