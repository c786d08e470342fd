"""The six-token protocol: logits of six ids at all six positions against eager float32.

The bars are those that a published C++ implementation reached on a model of this shape.
"""

from __future__ import annotations

import numpy as np

from kestrel.diff import cosine

MAX_ERROR = 3.7e-5
MEAN_ERROR = 4.2e-6
COSINE = 0.999999999999775


def figures(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float, float]:
    """Maximum and mean absolute error, cosine over all six rows [6, V]."""
    error = np.abs(ours.astype(np.float64) - theirs)
    return float(error.max()), float(error.mean()), cosine(ours, theirs)


def assert_within_bars(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The three bars."""
    assert ours.shape == theirs.shape and len(ours) == 6
    largest, mean, similarity = figures(ours, theirs)
    assert largest <= MAX_ERROR and mean <= MEAN_ERROR and similarity >= COSINE
