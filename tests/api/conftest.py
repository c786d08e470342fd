"""The demo model, loaded once for the tests that leave it as they find it."""

from __future__ import annotations

import gc

import pytest

import kestrel


@pytest.fixture(scope="session")
def loaded():
    """The bundled demo model on one thread, default limits."""
    with kestrel.load(threads=1) as model:
        yield model


@pytest.fixture
def model(loaded):
    """The same with a cold cache; afterwards no block may still be held."""
    from api.runs import cold

    cold(loaded)
    yield loaded
    gc.collect()  # an exception that was caught holds its frames, and they their sessions
    assert loaded.pool.available == loaded.pool.num_blocks
    loaded.pool.check(owners=[])
