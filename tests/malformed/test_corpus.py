"""Every file of the corpus: the right verdict, the right class, a message that helps."""

from __future__ import annotations

import pytest

from kestrel.checkpoint import SafetensorsFile
from kestrel.errors import CheckpointError, HeaderError
from malformed.corpus import BROKEN, VALID, Case, build, entry


def test_corpus_is_large_enough():
    assert len(BROKEN) >= 60
    names = [case.name for case in (*BROKEN, *VALID)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_broken_file_is_refused(case: Case, mmap: bool, tmp_path):
    path = case.write(tmp_path)
    with pytest.raises(HeaderError) as caught:
        SafetensorsFile(path, mmap=mmap)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert caught.value.file == str(path)
    assert not [part for part in case.parts if part not in message], message
    assert isinstance(caught.value, ValueError)
    assert len(message) < 1000


@pytest.mark.parametrize("mmap", [True, False], ids=["mmap", "read"])
@pytest.mark.parametrize("case", VALID, ids=lambda case: case.name)
def test_valid_file_is_read(case: Case, mmap: bool, tmp_path):
    file = SafetensorsFile(case.write(tmp_path), mmap=mmap)
    found = {name: (view.dtype.value, view.shape) for name, view in file.tensors.items()}
    assert found == case.tensors
    start = 8 + int.from_bytes(case.data[:8], "little")
    assert sum(view.nbytes for view in file.tensors.values()) == len(case.data) - start
    for view in file.tensors.values():
        assert bytes(view.data) == case.data[view.offset : view.offset + view.nbytes]


def test_the_limit_of_the_header_is_inclusive(tmp_path):
    # 100 MB exactly is a legal header, mostly padding here.
    path = tmp_path / "model.safetensors"
    header = '{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}'.ljust(100_000_000)
    path.write_bytes(build(header, b"7"))
    assert bytes(SafetensorsFile(path).tensors["a"].data) == b"7"


def test_a_header_of_many_tensors_is_read(tmp_path):
    path = tmp_path / "model.safetensors"
    header = {f"t{i}": entry("U8", [1], [i, i + 1]) for i in range(50_000)}
    path.write_bytes(build(header, bytes(i % 251 for i in range(50_000))))
    tensors = SafetensorsFile(path).tensors
    assert len(tensors) == 50_000
    assert tensors["t49999"].data[0] == 49_999 % 251


def test_what_is_not_a_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="there is no such file"):
        SafetensorsFile(tmp_path / "absent.safetensors")
    with pytest.raises(CheckpointError, match="expected a file, found a folder"):
        SafetensorsFile(tmp_path)
    with pytest.raises(CheckpointError, match="expected a file, found a device or pipe"):
        SafetensorsFile("/dev/null")
    with pytest.raises(CheckpointError, match="cannot be opened: .*embedded null"):
        SafetensorsFile("a\0b")
    link = tmp_path / "link.safetensors"
    link.symlink_to("../blobs/absent")
    with pytest.raises(CheckpointError, match=r"link\.safetensors: a link to \.\./blobs/absent"):
        SafetensorsFile(link)
