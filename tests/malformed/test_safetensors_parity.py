"""Kestrel and the safetensors package accept and refuse the same files."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from kestrel.checkpoint import Checkpoint, SafetensorsFile
from kestrel.errors import HeaderError
from malformed.corpus import CASES, STRICTER, Case

_VERSION = tuple(int(part) for part in safetensors.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(
    _VERSION < (0, 8),
    reason=f"parity is stated for safetensors 0.8 and later, found {safetensors.__version__}",
)


def _package_accepts(case: Case, path) -> bool:
    """The verdict of safe_open, checked to be that of deserialize."""
    try:
        # safe_open refuses frameworks, not files, when the framework is absent: NumPy never is.
        with safetensors.safe_open(path, "numpy") as file:
            names = sorted(file.keys())
    except safetensors.SafetensorError:
        names = None
    if not case.size:
        try:
            found = sorted(name for name, _ in safetensors.deserialize(case.data))
        except safetensors.SafetensorError:
            found = None
        assert found == names
    return names is not None


def _kestrel_accepts(path) -> bool:
    try:
        SafetensorsFile(path)
    except HeaderError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_verdict(case: Case, tmp_path):
    path = case.write(tmp_path)
    ours, theirs = _kestrel_accepts(path), _package_accepts(case, path)
    assert ours == (case.parts is None)
    if case.stricter:
        assert theirs and not ours, f"no longer an exception: {case.stricter}"
    else:
        assert ours == theirs


def test_the_exceptions_are_few_and_reasoned():
    assert [case for case in CASES if case.stricter] == STRICTER
    assert len(STRICTER) == 7


def test_the_package_reads_the_same_values(tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "scalar": np.array(3.5, np.float32),
        "half": rng.standard_normal((3, 5)).astype(np.float16),
        "single": rng.standard_normal((2, 7, 3)).astype(np.float32),
        "none": np.zeros((0, 4), np.float32),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "np"})
    file = SafetensorsFile(path)
    assert dict(file.metadata) == {"format": "np"}
    for name, array in load_file(path).items():
        values = file.tensors[name].to_numpy_f32()
        assert values.dtype == np.float32
        assert values.shape == arrays[name].shape
        np.testing.assert_array_equal(values, array.astype(np.float32))


@pytest.mark.parametrize("name", ["tales-5m", "tales-15m", "stories260K", "stories260K-bf16"])
def test_the_package_reads_the_same_bytes_of_real_models(shared_models, name):
    checkpoint = Checkpoint(shared_models / name)
    expected = {}
    for path in checkpoint.files:
        expected.update(safetensors.deserialize(path.read_bytes()))
    assert checkpoint.tensors.keys() == expected.keys()
    for tensor, view in checkpoint.tensors.items():
        found = (view.dtype.value, list(view.shape), bytes(view.data))
        assert found == tuple(expected[tensor][key] for key in ("dtype", "shape", "data"))
