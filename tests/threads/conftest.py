"""One model for the tests of this folder; two worker threads, so that they take part."""

from __future__ import annotations

import gc

import pytest

import kestrel


@pytest.fixture(scope="session")
def loaded():
    """The bundled demo model on two threads."""
    with kestrel.load(threads=2) as model:
        yield model


@pytest.fixture
def model(loaded):
    """The same; afterwards no block may still be held."""
    yield loaded
    gc.collect()
    loaded.pool.check(owners=[])
