"""Real, trained checkpoints without torch: the greedy lists of their READMEs, and the committed
logits of the six-token protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden.engines import ENGINES, Engine
from golden.make_golden import file_digest
from golden.model_readme import greedy_lists, six_token_ids
from golden.recipes import data_file
from golden.six_tokens import assert_within_bars
from kestrel import SamplingParams
from kestrel.dump import Dump

#: Lists whose smallest gap between the two best logits is larger than this must be met exactly.
MARGIN = 1e-3

engines = pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[-1]], ids=str)


def _assert_greedy_lists(engine: Engine, folder: Path, least: int) -> None:
    entries = [entry for entry in greedy_lists(folder) if entry["min_margin"] > MARGIN]
    assert len(entries) >= least
    with engine.load(folder) as model:
        for entry in entries:
            expected = entry["greedy_ids"]
            params = SamplingParams(temperature=0.0, max_tokens=len(expected))
            answer = model.generate(entry["prompt"], params)
            assert answer.prompt_ids == entry["prompt_ids"]
            assert answer.ids == expected
            # The list decodes the answer alone, which takes SentencePiece's first blank off.
            assert answer.text.lstrip(" ") == entry["greedy_text"].lstrip(" ")


def test_greedy_lists_of_the_demo_model(demo_model: Path) -> None:
    _assert_greedy_lists(ENGINES[-1], demo_model, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tales-15m", "stories260K", "stories260K-bf16", "aidreams260K"])
def test_greedy_lists_of_the_shared_models(name: str, shared_models: Path) -> None:
    _assert_greedy_lists(ENGINES[-1], shared_models / name, 3)


@pytest.mark.slow
def test_greedy_lists_in_float64_sums(shared_models: Path) -> None:
    """The reference backend meets them too."""
    _assert_greedy_lists(Engine("reference"), shared_models / "stories260K", 6)


@engines
def test_six_tokens_of_the_demo_model(engine: Engine, demo_model: Path) -> None:
    _assert_six(engine, demo_model, "six-tales-5m")


@engines
def test_six_tokens_of_stories260k(engine: Engine, shared_models: Path) -> None:
    _assert_six(engine, shared_models / "stories260K", "six-stories260K")


def _assert_six(engine: Engine, folder: Path, name: str) -> None:
    dump = Dump.read(data_file(name))
    assert dump.metadata["digest"] == file_digest(folder)
    assert dump.ids == six_token_ids(folder)
    with engine.load(folder) as model:
        logits = model.trace(dump.ids, ["lm_head"])["lm_head"]
    assert logits.dtype == np.float32
    assert_within_bars(logits, dump.stages["lm_head"])
