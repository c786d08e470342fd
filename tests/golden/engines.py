"""What the golden tests run a model on: every backend, and the cpu backend on every instruction
set that was built and may be used here."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import kestrel
from golden.recipes import RECIPES, Recipe
from kestrel import bounds
from kestrel.cache.sequence import Sequence
from kestrel.diff import StageRow, compare, first_beyond, table
from kestrel.program.trace import Trace, TraceSpec
from kestrel.stages import stages_of

__all__ = ["ENGINES", "ISAS", "Engine", "Folders", "assert_within", "held_to_definition"]
__all__ += ["same_bits", "trace_of"]

try:
    from kestrel import _ops

    ISAS = tuple(_ops.isas())
except ImportError:  # a checkout in which nothing was built
    ISAS = ()


@dataclass(frozen=True)
class Engine:
    """A backend, with a ceiling for its instruction set when it is the cpu backend."""

    backend: str
    isa: str | None = None

    def __str__(self) -> str:
        return self.isa or self.backend

    def load(self, folder: Path, **options: object) -> "kestrel.Model":
        """The model of ``folder`` on this engine; small limits, so that memory is no matter."""
        if self.backend == "cpu" and self.isa is None:
            pytest.skip("the cpu backend is not built: run pip install -e . first")
        if self.isa is not None:
            options = {"threads": 1, "isa": self.isa, **options}
        return kestrel.load(folder, backend=self.backend, **options)


#: Without a built extension the cpu engine stays in the list, so that its absence is seen.
ENGINES = [Engine("reference"), *(Engine("cpu", isa) for isa in ISAS or (None,))]


def assert_within(rows: list[StageRow]) -> None:
    """Every stage is bounded and within its bound."""
    assert rows and all(row.bound is not None for row in rows)
    assert first_beyond(rows) is None, table(rows)


def held_to_definition(
    recipe: Recipe, trace: Trace, cache: type | None = None
) -> None:
    """Every stage of a trace follows from the stages before it, at every position."""
    ours = replace(bounds.KESTREL, cache=cache)
    stages = list(stages_of(recipe.geometry()))
    assert [stage.name for stage in stages if stage.name not in trace] == []
    rows = compare(
        stages, recipe.weights(), trace.ids, trace, trace, ours, ours, recipe.rotated_from
    )
    assert_within(rows)


def trace_of(model: "kestrel.Model", recipe: Recipe, chunk: int | None = None) -> Trace:
    """A trace of the recipe's prompt, which came as the golden file's did.

    ``Model.trace`` runs a prompt that comes in one call. Where a part of it came token by token,
    the traced program is stepped here; of rows that are computed anew, only these are kept.
    """
    ids, start = recipe.ids(), recipe.decode_from
    if start is None:
        return model.trace(ids, chunk=chunk)
    runner = model._compile(len(ids), len(ids), TraceSpec(("*",)))
    sequence = Sequence(model.pool, ids[:start])
    pieces: dict[str, list[np.ndarray]] = defaultdict(list)
    for token in (*ids[start:], None):
        while sequence.computed < len(sequence.tokens):
            length = min(chunk or start, len(sequence.tokens) - sequence.computed)
            sequence.reserve(length)
            with runner.turn:
                runner.run([(sequence, sequence.computed, length, "all")])
                for stage, values in runner.executable.taps.items():
                    pieces[stage].append(values[:length].copy())
            sequence.advance(length)
        if token is not None:
            sequence.append(token)
            if not sequence.computed:
                pieces.clear()
    sequence.release()
    return Trace(ids, {stage: np.concatenate(parts) for stage, parts in pieces.items()})


@dataclass
class Folders:
    """Recipes as model folders, each written once."""

    root: Path

    def __getitem__(self, recipe: Recipe | str) -> Path:
        recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
        folder = self.root / recipe.digest()[:16]
        return folder if folder.is_dir() else recipe.write(folder)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit: +0 and -0 differ."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
