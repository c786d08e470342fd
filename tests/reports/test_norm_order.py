"""User report S44: the norm's weight multiplies what was normalised, and rounds after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from api.tiny import write_tiny
from checkpoints import round_to
from golden.engines import ENGINES, Engine

STAGE = "model.layers.0.input_layernorm"
IDS = list(range(64))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_s44_the_weight_comes_last(engine: Engine, tmp_path: Path) -> None:
    """x = 1000 normal, w = 0.001 normal, in bfloat16: LlamaRMSNorm is weight * (x / rms).

    A weight of ones shows x / rms as it is stored, since a product with 1 is exact; with w the
    result must be w times that, rounded once. Multiplying x by w first gives other bits.
    """
    drawn = np.random.default_rng(44).standard_normal((65, 32)).astype(np.float32)
    weight = round_to(0.001 * drawn[64], "BF16")

    def stage(name: str, values: np.ndarray) -> np.ndarray:
        def change(tensors: dict) -> None:
            tensors["model.embed_tokens.weight"] = 1000 * drawn[:64]
            tensors[f"{STAGE}.weight"] = values

        with engine.load(write_tiny(tmp_path / name, change, dtype="BF16")) as model:
            trace = model.trace(IDS, [STAGE, "model.embed_tokens"])
            return trace["model.embed_tokens"], trace[STAGE]

    x, normalised = stage("ones", np.ones(32, np.float32))
    _, weighted = stage("weighted", weight)
    last = weight * normalised  # [64, 32], float32
    first = (weight * x) * (normalised / x)
    assert np.abs(x).max() > 1000
    assert (first != last).any(), "the two orders cannot be told apart here"
    if engine.backend == "cpu":
        assert weighted.tobytes() == last.tobytes()
    else:
        # float64 inside: x / rms is not rounded before the product. That moves the result by at
        # most a unit in the last place, and half of one for each side's own rounding.
        assert (np.abs(weighted - last.astype(np.float64)) <= 2 * np.spacing(np.abs(last))).all()
