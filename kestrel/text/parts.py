"""The parts of a `tokenizers` pipeline (normalizer, decoder and so on) as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["flatten", "kinds", "state"]


def state(part: Any) -> dict[str, Any] | None:
    """A part as tokenizer.json writes it; None for an absent part."""
    return None if part is None else json.loads(part.__getstate__())


def flatten(spec: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The steps of a part in order; a Sequence has its own under ``key``."""
    if spec.get("type") != "Sequence":
        return [dict(spec)]
    return [step for inner in spec[key] for step in flatten(inner, key)]


def kinds(part: Any, key: str) -> list[str] | None:
    """The types of a part's steps; None for an absent part."""
    spec = state(part)
    return None if spec is None else [str(step["type"]) for step in flatten(spec, key)]
