"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real checkpoints beside the repository; the test is skipped without it."""
    folder = REPOSITORY.parent / "shared" / "models"
    if not folder.is_dir():
        pytest.skip(f"shared models absent: {folder} is not a folder")
    return folder


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The bundled demo model."""
    import kestrel

    return Path(kestrel.__file__).resolve().parent / "data" / "tales-5m"
