"""A checkpoint written for a test, and its tensors bound to their places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import tiny_llama_tensors, write_checkpoint

from kestrel.checkpoint import Checkpoint
from kestrel.models import understand
from kestrel.models.weights import DecoderWeights

__all__ = ["LAYER_FILES", "bind_all", "stored_names", "write"]

#: Tensors of the tiny model: nine a layer, embedding, norm, head.
LAYER_FILES = 9 * 2 + 3


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Write a checkpoint of tensors (default: the config's own) and open it."""

    def write_and_open(config, tensors=None, **options):
        tensors = tiny_llama_tensors(config, 3) if tensors is None else tensors
        return Checkpoint(write_checkpoint(tmp_path / "model", config, tensors, **options))

    return write_and_open


def bind_all(checkpoint: Checkpoint) -> tuple[DecoderWeights, list[str]]:
    """The weights of a checkpoint by use, and the notes."""
    _, weights, notes = understand(checkpoint)
    return weights, notes


def stored_names(weights: DecoderWeights) -> list[str]:
    """Names of the tensors in use; a part of one is named ``name[begin:end]``."""
    return sorted({view.name.partition("[")[0] for view in weights.tensors()})
