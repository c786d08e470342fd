"""TraceSpec says which stages to copy; Trace holds the copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

    from kestrel.text.prompt_tokens import PromptToken

__all__ = ["Trace", "TraceSpec"]


@dataclass(frozen=True)
class TraceSpec:
    """Which stages to record: shell patterns over Hugging Face names, ``*`` crossing dots."""

    patterns: tuple[str, ...]

    def matches(self, stage: str) -> bool:
        """Whether any pattern matches the stage's full name."""
        return any(fnmatchcase(stage, pattern) for pattern in self.patterns)


class Trace(Mapping):
    """Stage name -> float32 array [N, width], one row for each token in order of position.

    ``ids`` are the tokens that were run, ``tokens`` what they are and where each comes from.
    ``lm_head`` holds the logits [N, V].
    """

    def __init__(self, ids: list[int], stages: dict[str, "numpy.ndarray"]) -> None:
        self.ids = ids
        self.tokens: list["PromptToken"] = []
        self._stages = stages

    def __getitem__(self, stage: str) -> "numpy.ndarray":
        try:
            return self._stages[stage]
        except (KeyError, TypeError):
            near = get_close_matches(str(stage), self._stages, cutoff=0.4) or list(self)[:3]
            listed = ", ".join(near)
            raise KeyError(f"{stage!r}: no stage of this trace; near it: {listed}") from None

    def __contains__(self, stage: object) -> bool:
        return isinstance(stage, str) and stage in self._stages

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def __repr__(self) -> str:
        return f"Trace({len(self.ids)} tokens, {len(self)} stages)"
