"""The lists of expected ids and answers in the README of each folder of shared models."""

from __future__ import annotations

import json
import re
from pathlib import Path

#: Folders with a tokenizer.json that the tests below may rely on.
FOLDERS = (
    "SmolLM2-135M-Instruct",
    "aidreams260K",
    "stories260K",
    "tales-15m",
    "tales-5m",
    "tokenizer-gpt2",
    "tokenizer-mistral-v0.1",
    "tokenizer-qwen3",
)


def lists(folder: Path, key: str) -> list[dict[str, object]]:
    """Entries that have ``key``, of all JSON lists in the folder's README."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    entries: list[dict[str, object]] = []
    for block in re.findall(r"```json\n(\[.*?\n\])\n```", text, flags=re.DOTALL):
        entries += [entry for entry in json.loads(block) if key in entry]
    return entries
