"""The lists of expected ids and answers in the README of each folder of shared models."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

from kestrel.tokenizer import Tokenizer

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


@lru_cache
def opened(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, opened once for all tests: it does not change."""
    return Tokenizer.from_folder(folder)


def lists(folder: Path, key: str) -> list[dict[str, object]]:
    """Entries that have ``key``, of all JSON lists in the folder's README."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    entries: list[dict[str, object]] = []
    for block in re.findall(r"```json\n(\[.*?\n\])\n```", text, flags=re.DOTALL):
        entries += [entry for entry in json.loads(block) if key in entry]
    return entries
