"""The expected greedy output that each model folder's README lists, as data."""

from __future__ import annotations

import json
import re
from pathlib import Path

#: The key that says what a list in a README is about.
GREEDY = "greedy_ids"


def greedy_lists(folder: Path) -> list[dict[str, object]]:
    """Entries with prompt, prompt_ids, greedy_ids, min_margin, of the README's float32 list.

    A README may hold a second list, computed in bfloat16 and given for information: only the
    first one counts.
    """
    text = (folder / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"```json\n(\[.*?\n\])\n```", text, flags=re.DOTALL):
        entries = json.loads(block)
        if entries and GREEDY in entries[0]:
            return entries
    raise ValueError(f"{folder / 'README.md'}: no JSON list with {GREEDY!r}")


def six_token_ids(folder: Path) -> list[int]:
    """The first six ids of the README's first prompt and its greedy continuation."""
    first = greedy_lists(folder)[0]
    return [*first["prompt_ids"], *first[GREEDY]][:6]
