"""Read a safetensors file in place: the tensors are slices of one read-only mapping.

The safetensors package copies each tensor it hands out (0.8.0), and its messages do not say what a
wrong file is; both matter here, so the reader is our own and the package is the tests' oracle.
"""

from __future__ import annotations

import mmap as memory
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

import numpy as np

from kestrel.checkpoint.diagnose import HEAD_BYTES, describe
from kestrel.checkpoint.files import open_regular
from kestrel.checkpoint.header import ForeignDtype, parse_header
from kestrel.checkpoint.strict_json import MAX_JSON_BYTES
from kestrel.dtypes import Dtype
from kestrel.errors import CapacityError, CheckpointError, DtypeError, HeaderError

__all__ = ["SafetensorsFile", "TensorView"]

_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """A tensor where it lies in its file: nothing is copied.

    Attributes:
        name: as in the file.
        dtype: element type; a ForeignDtype when Kestrel cannot compute with it.
        shape: dimensions, row-major; ``()`` for a scalar.
        data: the tensor's bytes, little-endian, read-only. Holds the mapping alive. May be
            unaligned: the format promises nothing.
        file: path of the file, for messages.
        offset: of the first byte, counted from the beginning of the file.
    """

    name: str
    dtype: Dtype | ForeignDtype
    shape: tuple[int, ...]
    data: memoryview
    file: Path
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.data.nbytes

    def rows(self, begin: int, end: int) -> TensorView:
        """The rows [begin, end) of a matrix or vector, where they lie; the name says which."""
        row = self.nbytes // self.shape[0]
        return TensorView(
            name=f"{self.name}[{begin}:{end}]",
            dtype=self.dtype,
            shape=(end - begin, *self.shape[1:]),
            data=self.data[begin * row : end * row],
            file=self.file,
            offset=self.offset + begin * row,
        )

    def to_numpy_f32(self) -> np.ndarray:
        """A float32 copy of shape ``shape``; F16 and BF16 are widened, which is exact.

        Raises DtypeError for any other element type.
        """
        if self.dtype is Dtype.F32:
            values = np.frombuffer(self.data, "<f4").astype(np.float32)
        elif self.dtype is Dtype.F16:
            values = np.frombuffer(self.data, "<f2").astype(np.float32)
        elif self.dtype is Dtype.BF16:
            # BF16 is the upper half of a float32.
            values = (np.frombuffer(self.data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            raise DtypeError(
                f"{self.file}: tensor {self.name!r}: expected dtype F32, F16 or BF16, found "
                f"{self.dtype.value}: convert the model to one of the three",
                self.file,
            )
        return values.reshape(self.shape)


class SafetensorsFile:
    """One safetensors file, opened and checked. Immutable, so threads may share it.

    The file must not be cut while it is mapped: touching a page that is gone ends the process
    (SIGBUS), which no exception can catch. ``mmap=False`` reads it whole, for network disks.

    Raises HeaderError when it is not a valid safetensors file, CheckpointError when it cannot be
    read, CapacityError when ``mmap=False`` and memory does not suffice.
    """

    __slots__ = ("_metadata", "_path", "_size", "_tensors")

    def __init__(self, path: str | os.PathLike[str], mmap: bool = True) -> None:
        self._path = Path(path)
        file, self._size = open_regular(self._path)
        with file:
            try:
                raw = self._read_header(file)
                start = _LENGTH_BYTES + len(raw)
                entries, metadata = parse_header(raw, self._size - start, self._path)
                data = self._map(file) if mmap else self._read(file)
            except OSError as error:
                message = f"{self._path}: cannot be read: {error.strerror or error}"
                raise CheckpointError(message, self._path) from error
        self._metadata = MappingProxyType(metadata)
        self._tensors = MappingProxyType(
            {
                entry.name: TensorView(
                    name=entry.name,
                    dtype=entry.dtype,
                    shape=entry.shape,
                    data=data[start + entry.begin : start + entry.end],
                    file=self._path,
                    offset=start + entry.begin,
                )
                for entry in entries
            }
        )

    @property
    def path(self) -> Path:
        """The path as given, links unresolved."""
        return self._path

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        return self._size

    @property
    def metadata(self) -> Mapping[str, str]:
        """The header's ``__metadata__``; empty when there is none."""
        return self._metadata

    @property
    def tensors(self) -> Mapping[str, TensorView]:
        """Name to view, in the order of the bytes in the file."""
        return self._tensors

    def _read_header(self, file: BinaryIO) -> bytes:
        """The header's JSON. Raises HeaderError when its length cannot be right."""
        head = file.read(HEAD_BYTES)
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if self._size < _LENGTH_BYTES:
            fault = "too short for the 8 bytes that a safetensors file begins with"
        elif length > MAX_JSON_BYTES:
            fault = (
                f"not a safetensors file, or one with a header of {length:,} bytes, "
                f"over the format's limit of {MAX_JSON_BYTES:,}"
            )
        elif length > self._size - _LENGTH_BYTES:
            fault = (
                f"the header should have {length:,} bytes but only "
                f"{self._size - _LENGTH_BYTES:,} follow (a cut download?): download it again"
            )
        elif length == 0:
            fault = "the header has no bytes"
        else:
            file.seek(_LENGTH_BYTES)
            return file.read(length)
        kind = describe(head, self._size)
        raise HeaderError(f"{self._path}: {self._size:,} bytes, {kind or fault}", self._path)

    def _map(self, file: BinaryIO) -> memoryview:
        try:
            mapping = memory.mmap(file.fileno(), self._size, access=memory.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self._path}: cannot be mapped into memory ({error}): "
                "read it instead, with mmap=False or --no-mmap",
                self._path,
            ) from error
        if hasattr(memory, "MADV_WILLNEED"):
            # Lets the system read ahead while the rest of the program starts.
            mapping.madvise(memory.MADV_WILLNEED)
        return memoryview(mapping)

    def _read(self, file: BinaryIO) -> memoryview:
        """The file copied into memory of its own, in large pages where the system gives them."""
        file.seek(0)
        try:
            # Private: shared memory has large pages only where the system was told so.
            copy = memory.mmap(-1, self._size, flags=memory.MAP_PRIVATE | memory.MAP_ANONYMOUS)
        except (OSError, ValueError, MemoryError):
            raise CapacityError(
                f"{self._path}: {self._size:,} bytes do not fit into memory: "
                "map the file instead (leave mmap on)"
            ) from None
        if hasattr(memory, "MADV_HUGEPAGE"):
            copy.madvise(memory.MADV_HUGEPAGE)
        data, done = memoryview(copy), 0
        while done < self._size and (count := file.readinto(data[done:])):
            done += count
        if done != self._size:
            raise CheckpointError(
                f"{self._path}: expected {self._size:,} bytes, read {done:,}: "
                "another program is changing the file: wait for it, then load again",
                self._path,
            )
        return data.toreadonly()
