"""The header of a safetensors file, checked in full.

The format (https://huggingface.co/docs/safetensors): eight bytes with the header's length N, N
bytes of JSON, then the tensors' bytes. Accepted and refused are the same files as by the
safetensors package, with the exceptions that tests/malformed/corpus.py lists, each with its reason.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from pathlib import Path

from kestrel.checkpoint.strict_json import JsonError, parse_json
from kestrel.dtypes import Dtype
from kestrel.errors import HeaderError
from kestrel.integers import counted

__all__ = ["DTYPE_BITS", "ForeignDtype", "TensorEntry", "parse_header"]

#: Bits per element of every dtype that safetensors 0.8.0 knows.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_FIELDS = ("dtype", "shape", "data_offsets")
_MAX_U64 = 2**64 - 1
_DAMAGED = "the file is damaged or its writer was faulty: download it again, or write it anew"


@dataclass(frozen=True, slots=True)
class ForeignDtype:
    """An element type that safetensors files may hold and Kestrel does not compute with.

    ``value`` is the name in the header, as for Dtype.
    """

    value: str

    @property
    def name(self) -> str:
        """Same as ``value``, so that both kinds of dtype print alike."""
        return self.value

    @property
    def bits(self) -> int:
        """Bits per element: some of these types are smaller than a byte."""
        return DTYPE_BITS[self.value]


_DTYPES = {
    name: Dtype(name) if name in Dtype.__members__ else ForeignDtype(name) for name in DTYPE_BITS
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a header. ``begin`` and ``end`` count bytes from the header's end."""

    name: str
    dtype: Dtype | ForeignDtype
    shape: tuple[int, ...]
    begin: int
    end: int


def parse_header(
    raw: bytes, data_bytes: int, file: Path
) -> tuple[list[TensorEntry], dict[str, str]]:
    """Parse and check a header.

    Args:
        raw: the JSON bytes, without the eight that hold their length.
        data_bytes: bytes that follow the header in the file.
        file: for messages.

    Returns:
        The tensors in the order of their bytes, and the file's ``__metadata__``.

    Raises HeaderError naming the file, the tensor, what was expected and what was found.
    """
    try:
        header = parse_json(raw)
    except JsonError as error:
        message = f"{file}: header of {len(raw):,} bytes: {error}: {_DAMAGED}"
        raise HeaderError(message, file) from None
    if not isinstance(header, dict):
        message = f"{file}: header: {_wrong('a JSON object {...}', header)}: {_DAMAGED}"
        raise HeaderError(message, file)
    try:
        metadata = _metadata(header.pop("__metadata__", None))
    except _Fault as fault:
        raise HeaderError(f"{file}: __metadata__{fault}: {_DAMAGED}", file) from None
    entries = []
    for name, info in header.items():
        try:
            entries.append(_entry(name, info))
        except _Fault as fault:
            message = f"{file}: tensor {name[:200]!r}: {fault}: {_DAMAGED}"
            raise HeaderError(message, file) from None
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_layout(entries, data_bytes, file)
    return entries, metadata


class _Fault(ValueError):
    """What is wrong with one item; the caller knows which item, and names it."""


def _wrong(expected: str, found: object) -> str:
    return f"expected {expected}, found {reprlib.repr(found)}"


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _Fault(f": {_wrong('an object of texts', value)}")
    for key, item in value.items():
        if not isinstance(item, str):
            raise _Fault(f" {key[:80]!r}: {_wrong('a text', item)}")
    return value


def _entry(name: str, info: object) -> TensorEntry:
    if not isinstance(info, dict):
        raise _Fault(_wrong("an object with dtype, shape and data_offsets", info))
    for field in _FIELDS:
        if field not in info:
            raise _Fault(f"{field} is missing")
    if len(info) > len(_FIELDS):
        unknown = next(field for field in info if field not in _FIELDS)
        raise _Fault(f"unknown field {unknown[:80]!r}, expected {', '.join(_FIELDS)} alone")
    dtype_name, shape, offsets = info["dtype"], info["shape"], info["data_offsets"]
    if not isinstance(dtype_name, str) or dtype_name not in _DTYPES:
        raise _Fault(f"dtype: {_wrong('one of ' + ', '.join(_DTYPES), dtype_name)}")
    if not _are_counts(shape):
        raise _Fault(f"shape: {_wrong('a list of non-negative integers', shape)}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise _Fault(f"data_offsets: {_wrong('two non-negative integers', offsets)}")
    begin, end = offsets
    if end < begin:
        raise _Fault(f"data_offsets: {_wrong('begin <= end', offsets)}")
    size = _tensor_bytes(dtype_name, shape)
    if end - begin != size:
        raise _Fault(
            f"dtype {dtype_name} and shape {reprlib.repr(shape)} need {size:,} bytes, "
            f"but data_offsets {offsets} hold {end - begin:,}"
        )
    return TensorEntry(name, _DTYPES[dtype_name], tuple(shape), begin, end)


def _are_counts(values: object) -> bool:
    if not isinstance(values, list):
        return False
    for value in values:
        # bool is an int to Python, and `true` no size to anyone.
        if type(value) is not int or value < 0 or value > _MAX_U64:
            return False
    return True


def _tensor_bytes(dtype_name: str, shape: list[int]) -> int:
    """Bytes of a tensor; the product may not pass 64 bits even midway, as in safetensors."""
    bits = 1
    for factor in (*shape, DTYPE_BITS[dtype_name]):
        bits *= factor
        if bits > _MAX_U64:
            raise _Fault(f"shape {reprlib.repr(shape)} of {dtype_name} overflows 64 bits")
    if bits % 8:
        raise _Fault(
            f"shape {reprlib.repr(shape)} of {dtype_name} is {bits:,} bits, "
            "which is no whole number of bytes"
        )
    return bits // 8


def _check_layout(entries: list[TensorEntry], data_bytes: int, file: Path) -> None:
    """Tensors lie one after the other, without hole or overlap, from the header to the end."""
    position, before = 0, "the header"
    for entry in entries:
        name = f"tensor {entry.name[:200]!r}"
        if entry.begin > position:
            gap = entry.begin - position
            raise HeaderError(
                f"{file}: a hole of {counted(gap, 'byte')} between {before} (which ends at "
                f"{position:,}) and {name} (which begins at {entry.begin:,}): {_DAMAGED}",
                file,
            )
        if entry.begin < position:
            raise HeaderError(
                f"{file}: {name} begins at {entry.begin:,} and overlaps {before}, "
                f"which ends at {position:,}: {_DAMAGED}",
                file,
            )
        position, before = entry.end, name
    if position > data_bytes:
        raise HeaderError(
            f"{file}: ends {counted(position - data_bytes, 'byte')} early: its header describes "
            f"{position:,} bytes of tensors, {data_bytes:,} are there (a cut download?): "
            "download it again",
            file,
        )
    if position < data_bytes:
        raise HeaderError(
            f"{file}: {counted(data_bytes - position, 'byte')} after the last tensor, which ends "
            f"at {position:,} of {data_bytes:,}: {_DAMAGED}",
            file,
        )
