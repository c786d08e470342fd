"""TensorView and SafetensorsFile: values, zero copies, lifetimes, threads."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import threading

import numpy as np
import pytest

from checkpoints import write_safetensors
from kestrel.checkpoint import ForeignDtype, SafetensorsFile
from kestrel.dtypes import Dtype
from kestrel.errors import DtypeError
from malformed.corpus import build, entry


def _file(path, dtype: str, bits: list[int], width: int) -> SafetensorsFile:
    data = b"".join(value.to_bytes(width, "little") for value in bits)
    path.write_bytes(build({"a": entry(dtype, [len(bits)], [0, len(data)])}, data))
    return SafetensorsFile(path)


@pytest.mark.parametrize("mmap", [True, False])
def test_views_tell_where_they_lie(tmp_path, mmap):
    path = tmp_path / "model.safetensors"
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([7])}
    write_safetensors(path, tensors, "F32")
    file = SafetensorsFile(path, mmap=mmap)
    whole = path.read_bytes()
    assert file.path == path
    assert file.nbytes == len(whole)
    assert dict(file.metadata) == {"format": "pt"}
    b = file.tensors["b"]
    assert (b.name, b.dtype, b.shape, b.nbytes, b.file) == ("b", Dtype.F32, (1,), 4, path)
    assert b.offset == len(whole) - 4
    assert bytes(b.data) == whole[-4:] == np.float32(7).tobytes()
    np.testing.assert_array_equal(file.tensors["a"].to_numpy_f32(), tensors["a"])


def test_bf16_is_widened_exactly(tmp_path):
    # IEEE 754 by hand: 1, -2, the largest finite, the least subnormal 2^-133, -infinity, -0.
    bits = [0x3F80, 0xC000, 0x7F7F, 0x0001, 0xFF80, 0x8000]
    values = _file(tmp_path / "x", "BF16", bits, 2).tensors["a"].to_numpy_f32()
    assert values.dtype == np.float32
    assert values.tolist() == [1.0, -2.0, (2 - 2**-7) * 2.0**127, 2.0**-133, -np.inf, 0.0]
    assert np.signbit(values[5])


def test_every_bf16_pattern_is_the_upper_half_of_its_float32(tmp_path):
    values = _file(tmp_path / "x", "BF16", list(range(65536)), 2).tensors["a"].to_numpy_f32()
    assert (values.view(np.uint32) == np.arange(65536, dtype=np.uint32) * 65536).all()


def test_f16_is_widened_exactly(tmp_path):
    # IEEE 754 by hand: 1, -2, the largest finite, the least subnormal 2^-24, -infinity.
    bits = [0x3C00, 0xC000, 0x7BFF, 0x0001, 0xFC00]
    values = _file(tmp_path / "x", "F16", bits, 2).tensors["a"].to_numpy_f32()
    assert values.dtype == np.float32
    assert values.tolist() == [1.0, -2.0, 65504.0, 2.0**-24, -np.inf]


def test_unaligned_tensors_are_read(tmp_path):
    # One byte in front puts every float at an odd address.
    data = b"\x01" + np.float32([1.5, -3.25]).tobytes()
    header = {"u": entry("U8", [], [0, 1]), "f": entry("F32", [2], [1, 9])}
    path = tmp_path / "x"
    path.write_bytes(build(header, data))
    assert SafetensorsFile(path).tensors["f"].to_numpy_f32().tolist() == [1.5, -3.25]


@pytest.mark.parametrize(("dtype", "width"), [("F64", 8), ("I8", 1), ("F8_E4M3", 1), ("I32", 4)])
def test_other_dtypes_open_but_do_not_convert(tmp_path, dtype, width):
    path = tmp_path / "x"
    view = _file(path, dtype, [1, 2], width).tensors["a"]
    assert view.dtype.value == view.dtype.name == dtype
    assert isinstance(view.dtype, Dtype if dtype == "I32" else ForeignDtype)
    assert bytes(view.data)[:width] == (1).to_bytes(width, "little")
    with pytest.raises(DtypeError) as caught:
        view.to_numpy_f32()
    message = str(caught.value)
    assert str(path) in message and "'a'" in message and f"found {dtype}" in message
    assert "F32, F16 or BF16" in message


def test_foreign_dtypes_know_their_bits():
    assert ForeignDtype("F4").bits == 4
    assert ForeignDtype("F64").bits == 64


def test_nothing_can_be_changed(tmp_path):
    view = _file(tmp_path / "x", "F32", [1, 2], 4).tensors["a"]
    assert view.data.readonly
    with pytest.raises(TypeError):
        view.data[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.name = "b"
    with pytest.raises(TypeError):
        SafetensorsFile(tmp_path / "x").tensors["b"] = view
    values = view.to_numpy_f32()
    values[0] = 5
    assert bytes(view.data) == (1).to_bytes(4, "little") + (2).to_bytes(4, "little")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps is Linux's")
def test_mapped_tensors_are_the_pages_of_the_file(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.zeros((4096, 4), np.float32), "b": np.ones(3, np.float32)})
    views = SafetensorsFile(path).tensors
    address = {n: np.frombuffer(v.data, np.uint8).ctypes.data for n, v in views.items()}
    assert address["b"] - address["a"] == views["b"].offset - views["a"].offset
    with open("/proc/self/maps", encoding="utf-8") as maps:
        lines = [line.split() for line in maps if line.rstrip().endswith(str(path))]
    ranges = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    assert [line[1][1] for line in lines] == ["-"], "mapped writable"
    assert any(low <= address["b"] < high for low, high in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_a_gigabyte_is_opened_without_reading_it(tmp_path):
    size = 1 << 30
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write(build({"a": entry("BF16", [size // 2], [0, size])}))
        file.truncate(file.tell() + size)
    before = _resident_bytes()
    view = SafetensorsFile(path).tensors["a"]
    assert view.nbytes == size
    assert view.data[-1] == 0
    # One page was touched; the room is for the interpreter's own allocations.
    assert _resident_bytes() - before < size // 64


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="utf-8") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("mmap", [True, False])
def test_a_view_outlives_its_file_object_and_its_file(tmp_path, mmap):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.arange(10_000, dtype=np.float32)})
    view = SafetensorsFile(path, mmap=mmap).tensors["a"]
    path.unlink()
    gc.collect()
    assert view.to_numpy_f32().sum() == 10_000 * 9_999 / 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/fd is Linux's")
def test_a_file_that_was_read_is_closed(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": np.arange(4, dtype=np.float32)})
    file = SafetensorsFile(path, mmap=False)
    open_files = {os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")}
    assert os.path.realpath(path) not in open_files
    assert file.tensors["a"].to_numpy_f32().tolist() == [0, 1, 2, 3]


def test_threads_share_one_file(tmp_path):
    path = tmp_path / "model.safetensors"
    rng = np.random.default_rng(2)
    arrays = {f"t{i}": rng.standard_normal((64, 64)).astype(np.float32) for i in range(8)}
    write_safetensors(path, arrays)
    file = SafetensorsFile(path)
    wrong: list[str] = []

    def read(first: int) -> None:
        for i in range(first, first + 32):
            name = f"t{i % 8}"
            if not np.array_equal(file.tensors[name].to_numpy_f32(), arrays[name]):
                wrong.append(name)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
