"""Safetensors files, broken and odd, each built in code with the verdict it deserves.

``CASES`` is read by test_corpus.py (our class and message) and test_safetensors_parity.py (the
safetensors package agrees, except where ``stricter`` gives the reason why Kestrel refuses more).
Found by running safetensors 0.8.0 on each file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

FOUR = bytes(4)
_ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'


@dataclass(frozen=True)
class Case:
    """One file.

    Attributes:
        name: of the test.
        data: the file's bytes, or its beginning when ``size`` is larger (the rest is a hole).
        parts: texts that the message must contain; None when the file is valid.
        stricter: why Kestrel refuses what the safetensors package accepts; "" when they agree.
        tensors: for a valid file, name to (dtype name, shape).
    """

    name: str
    data: bytes
    parts: tuple[str, ...] | None
    stricter: str = ""
    size: int = 0
    tensors: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        path = folder / "model.safetensors"
        with open(path, "wb") as file:
            file.write(self.data)
            if self.size:
                file.truncate(self.size)
        return path


def build(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header (an object, a text or bytes) and a true or a false length."""
    raw = header if isinstance(header, (str, bytes)) else json.dumps(header)
    raw = raw.encode() if isinstance(raw, str) else raw
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype: object = "F32", shape: object = (1,), offsets: object = (0, 4), **more) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def _bad(name: str, data: bytes, *parts: str, stricter: str = "", size: int = 0) -> Case:
    return Case(name, data, parts, stricter, size)


def _good(name: str, data: bytes, **tensors: tuple[str, tuple[int, ...]]) -> Case:
    return Case(name, data, None, tensors=tensors)


def _one(text: str, data: bytes = FOUR) -> bytes:
    """A file whose only tensor 'a' has this text between its braces."""
    return build('{"a":{' + text + "}}", data)


def _dtype_size(dtype: str, size: int) -> Case:
    return _good(f"dtype {dtype}", build({"a": entry(dtype, [8], [0, size])}, bytes(size)),
                 a=(dtype, (8,)))  # fmt: skip


LENGTHS = [
    _bad("empty file", b"", "0 bytes", "an empty file", "download the file again"),
    _bad("7 bytes", bytes(7), "7 bytes", "too short", "8 bytes"),
    _bad("length alone", build("", length=2), "header should have 2 bytes", "only 0 follow"),
    _bad("no header", build("", b"abc" * 9), "the header has no bytes"),
    _bad("one byte too long", build("{}", length=3), "should have 3 bytes", "only 2 follow"),
    _bad("header cut short", build("{} ", length=1), "not valid JSON"),
    _bad("length leaves a byte", build("{} ", length=2), "1 byte after the last tensor"),
    _bad("length 100,000,001", build("{}", length=100_000_001), "100,000,001", "100,000,000"),
    _bad("length 2^63", build("{}", length=2**63), "9,223,372,036,854,775,808", "100,000,000"),
    _bad("length 2^64-1", build("{}", length=2**64 - 1), "18,446,744,073,709,551,615"),
    _bad("honest header of 132 MB (S17)", build('{"a":', length=0x07DF9D40),
         "132,095,296 bytes", "limit of 100,000,000", size=0x07DF9D40 + 8),
    _bad("zeros", bytes(64), "zeros where the file should begin", "unfinished download"),
]  # fmt: skip

JSON = [
    _bad("not UTF-8", build(b'{"\xff":1}'), "not UTF-8", "0xff at offset 2"),
    _bad("UTF-8 surrogate", build(b'{"\xed\xa0\x80":1}'), "not UTF-8", "0xed"),
    _bad("UTF-8 overlong", build(b'{"\xc0\xaf":1}'), "not UTF-8", "0xc0"),
    _bad("UTF-16", build("\ufeff{}".encode("utf-16-le")), "UTF-16"),
    _bad("byte order mark", build("\ufeff{}"), "byte order mark"),
    _bad("a list", build([]), "expected a JSON object", "found []"),
    _bad("null", build("null"), "expected a JSON object", "found None"),
    _bad("a text", build('"a"'), "expected a JSON object", "found 'a'"),
    _bad("a number", build("1"), "expected a JSON object", "found 1"),
    _bad("single quotes", build("{'a':1}"), "not valid JSON", "column 2"),
    _bad("open brace", build('{"a":{' + _ONE), "not valid JSON"),
    _bad("trailing comma", build('{"a":{' + _ONE + "},}", FOUR), "not valid JSON"),
    _bad("two objects", build("{}{}"), "not valid JSON", "Extra data"),
    _bad("trailing NUL", build("{}\0\0"), "not valid JSON", "Extra data"),
    _bad("trailing form feed", build("{}\f"), "not valid JSON", "Extra data"),
    _bad("trailing no-break space", build("{}\u00a0"), "not valid JSON", "Extra data"),
    _bad("raw tab in a name", build('{"a\tb":{' + _ONE + "}}", FOUR), "control character"),
    _bad("lone surrogate in a name", build(r'{"\ud800":{' + _ONE + "}}", FOUR), "surrogate"),
    _bad("lone surrogate in metadata", build(r'{"__metadata__":{"a":"\uDC00"}}'), "surrogate"),
    _bad("half pair, then a letter", build(r'{"\ud83d\u0041":{' + _ONE + "}}", FOUR), "surrogate"),
    _bad("NaN", build('{"a":NaN}'), "NaN is not a JSON value"),
    _bad("Infinity", build('{"a":-Infinity}'), "-Infinity is not a JSON value"),
    _bad("1e999", build('{"a":1e999}'), "1e999 is out of range"),
    _bad("100,000 brackets", build("[" * 100_000), "nested too deeply"),
    _bad("100,000 objects", build('{"a":' * 100_000), "nested too deeply"),
    _bad("number of 5,000 digits", _one('"dtype":"F32","shape":[' + "9" * 5000 + "]"), "5,000 dig"),
    _bad("number with leading zero", _one(_ONE.replace("[1]", "[01]")), "not valid JSON"),
    _bad("number with plus", _one(_ONE.replace("[1]", "[+1]")), "not valid JSON"),
    _bad("field twice", _one('"dtype":"F32",' + _ONE), "'dtype' stands twice"),
    _bad("metadata twice", build('{"__metadata__":{},"__metadata__":{}}'), "'__metadata__' stands"),
]

FIELDS = [
    _bad("tensor null", build({"a": None}), "tensor 'a'", "expected an object", "found None"),
    _bad("tensor number", build({"a": 1}), "tensor 'a'", "expected an object", "found 1"),
    _bad("no dtype", _one('"shape":[1],"data_offsets":[0,4]'), "'a'", "dtype is missing"),
    _bad("no shape", _one('"dtype":"F32","data_offsets":[0,4]'), "'a'", "shape is missing"),
    _bad("no offsets", _one('"dtype":"F32","shape":[1]'), "'a'", "data_offsets is missing"),
    _bad("dtype F128", build({"a": entry("F128")}, FOUR), "dtype", "BF16", "found 'F128'"),
    _bad("dtype bf16", build({"a": entry("bf16")}, FOUR), "dtype", "BF16", "found 'bf16'"),
    _bad("dtype U4", build({"a": entry("U4", [8])}, FOUR), "dtype", "found 'U4'"),
    _bad("dtype null", build({"a": entry(None)}, FOUR), "dtype", "found None"),
    _bad("dtype list", build({"a": entry(["F32"])}, FOUR), "dtype", "found ['F32']"),
    _bad("shape null", build({"a": entry(shape=None)}, FOUR), "'a': shape", "found None"),
    _bad("shape number", build({"a": entry(shape=1)}, FOUR), "'a': shape", "found 1"),
    _bad("shape object", build({"a": entry(shape={"0": 1})}, FOUR), "'a': shape", "{'0': 1}"),
    _bad("shape -1", build({"a": entry(shape=[-1])}, FOUR), "non-negative integers", "[-1]"),
    _bad("shape 1.0", build({"a": entry(shape=[1.0])}, FOUR), "non-negative integers", "[1.0]"),
    _bad("shape 1e0", _one(_ONE.replace("[1]", "[1e0]")), "non-negative integers", "[1.0]"),
    _bad("shape -0", _one(_ONE.replace("[1]", "[-0]")), "non-negative integers", "[-0.0]"),
    _bad("shape true", build({"a": entry(shape=[True])}, FOUR), "integers", "[True]"),
    _bad("shape text", build({"a": entry(shape=["1"])}, FOUR), "integers", "['1']"),
    _bad("shape 2^64, 0", build({"a": entry(shape=[2**64, 0], offsets=[0, 0])}), "integers"),
    _bad("three offsets", build({"a": entry(offsets=[0, 4, 8])}, FOUR), "two non-negative"),
    _bad("one offset", build({"a": entry(offsets=[4])}, FOUR), "two non-negative", "[4]"),
    _bad("offsets object", build({"a": entry(offsets={"0": 0})}, FOUR), "two non-negative"),
    _bad("offset -4", build({"a": entry(offsets=[-4, 0])}, FOUR), "two non-negative", "[-4, 0]"),
    _bad("offset 4.0", build({"a": entry(offsets=[0, 4.0])}, FOUR), "two non-negative", "4.0"),
    _bad("offset false", build({"a": entry(offsets=[False, 4])}, FOUR), "two non-negative"),
    _bad("metadata number", build({"__metadata__": {"x": 1}}), "__metadata__ 'x'", "found 1"),
    _bad("metadata list", build({"__metadata__": []}), "__metadata__", "found []"),
    _bad("metadata is a tensor", build({"__metadata__": entry()}, FOUR), "__metadata__", "[1]"),
]

LAYOUT = [
    _bad("shape beyond bytes (S15)", build({"a": entry(shape=[1000, 1000], offsets=[0, 16])},
         bytes(16)), "tensor 'a'", "F32", "[1000, 1000]", "4,000,000 bytes", "hold 16"),
    _bad("bytes beyond shape", build({"a": entry(offsets=[0, 8])}, bytes(8)), "4 bytes", "hold 8"),
    _bad("scalar of no bytes", build({"a": entry(shape=[], offsets=[0, 0])}), "4 bytes", "hold 0"),
    _bad("end before begin", build({"a": entry(offsets=[4, 0])}, FOUR), "begin <= end", "[4, 0]"),
    _bad("product overflows", build({"a": entry(shape=[2**63, 4], offsets=[0, 0])}), "overflows"),
    _bad("overflow, then 0", build({"a": entry(shape=[2**63, 4, 0], offsets=[0, 0])}), "overflows"),
    _bad("bits overflow", build({"a": entry(shape=[2**60], offsets=[0, 2**62])}), "overflows"),
    _bad("hole", build({"a": entry(), "b": entry(offsets=[8, 12])}, bytes(12)),
         "hole of 4 bytes", "tensor 'a'", "ends at 4", "tensor 'b'", "begins at 8"),
    _bad("hole in front", build({"a": entry(offsets=[4, 8])}, bytes(8)), "hole of 4", "the header"),
    _bad("same bytes twice", build({"a": entry(), "b": entry()}, FOUR), "overlaps tensor"),
    _bad("overlap", build({"a": entry(shape=[2], offsets=[0, 8]), "b": entry(offsets=[4, 8])},
         bytes(8)), "tensor 'b' begins at 4", "overlaps tensor 'a'", "ends at 8"),
    _bad("empty tensor inside another", build({"a": entry(), "z": entry(shape=[0],
         offsets=[2, 2])}, FOUR), "tensor 'z' begins at 2", "overlaps tensor 'a'"),
    _bad("empty tensor past the end", build({"a": entry(), "z": entry(shape=[0],
         offsets=[8, 8])}, FOUR), "hole of 4 bytes", "tensor 'z'"),
    _bad("one byte over", build({"a": entry()}, FOUR + b"x"), "1 byte after the last tensor"),
    _bad("one byte short", build({"a": entry()}, FOUR[:3]), "ends 1 byte early", "again"),
    _bad("no data", build({"a": entry()}), "ends 4 bytes early", "4 bytes of tensors, 0 are there"),
    _bad("cut by 100 bytes (S16)", build({"a": entry(shape=[64], offsets=[0, 256])}, bytes(156)),
         "ends 100 bytes early", "256 bytes of tensors, 156 are there", "download it again"),
    _bad("half a byte", build({"a": entry("F4", [3], [0, 1])}, b"\0"), "12 bits", "whole number"),
    _bad("half a byte, rounded up", build({"a": entry("F4", [3], [0, 2])}, b"\0\0"), "12 bits"),
]  # fmt: skip

_LFS = b"""version https://git-lfs.github.com/spec/v1
oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393
size 30383424
"""

OTHER_FORMATS = [
    _bad("Git LFS pointer (S16)", _LFS, "133 bytes, a Git LFS pointer", "30,383,424 bytes",
         "run `git lfs pull`"),
    _bad("HTML page (S16)", b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>",
         "64 bytes, an HTML page", "download the file itself"),
    _bad("XML answer", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML"),
    _bad("text answer", b"Entry not found", "15 bytes, a text", "'Entry not found'"),
    _bad("JSON answer", b'{"error": "Repository not found"}', "a JSON text", "Repository not"),
    _bad("torch.save", b"PK\x03\x04\x00\x00\x08\x08" + bytes(99), "a ZIP archive", "convert"),
    _bad("old torch.save", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
    _bad("GGUF", b"GGUF\x03\0\0\0" + bytes(99), "a GGUF file", "llama.cpp"),
    _bad("HDF5", b"\x89HDF\r\n\x1a\n" + bytes(99), "an HDF5 file"),
    _bad("NumPy", b"\x93NUMPY\x01\0v\0", "a NumPy array file"),
    _bad("gzip", b"\x1f\x8b\x08\0\xff\xff\xff\xff", "gzip-compressed data", "unpack it"),
    _bad("zstd", b"\x28\xb5\x2f\xfd\x04\x58\x41\0\0", "zstd-compressed data"),
    _bad("noise", bytes(range(128, 256)), "128 bytes, not a safetensors file"),
]  # fmt: skip

_LAST_WINS = "the package keeps the last of the two; a reader that keeps the first loads others"
_SERDE = "an accident of the package's JSON library that the format does not describe"
STRICTER = [
    _bad("name twice", build('{"a":{' + _ONE + '},"a":{' + _ONE + "}}", FOUR),
         "'a' stands twice", stricter=_LAST_WINS),
    _bad("name twice, once escaped", build('{"a":{' + _ONE + r'},"\u0061":{' + _ONE + "}}", FOUR),
         "'a' stands twice", stricter=_LAST_WINS),
    _bad("name twice, first out of place", build('{"a":{' + _ONE.replace("[0,4]", "[4,8]")
         + '},"a":{' + _ONE + "}}", FOUR), "'a' stands twice", stricter=_LAST_WINS),
    _bad("metadata key twice", build('{"__metadata__":{"x":"1","x":"2"}}'), "'x' stands twice",
         stricter=_LAST_WINS),
    _bad("unknown field", build({"a": entry(scale=2)}, FOUR), "tensor 'a'", "unknown field 'scale'",
         stricter="a field that is not understood may change what the bytes mean"),
    _bad("tensor as a list", build({"a": ["F32", [1], [0, 4]]}, FOUR), "expected an object",
         stricter=_SERDE),
    _bad("dtype as an object", build({"a": entry({"F32": None})}, FOUR), "dtype", stricter=_SERDE),
]  # fmt: skip

VALID = [
    _good("one tensor", build({"a": entry()}, FOUR), a=("F32", (1,))),
    _good("no tensor", build("{}")),
    _good("metadata", build({"__metadata__": {"x": "y"}, "a": entry()}, FOUR), a=("F32", (1,))),
    _good("metadata last", build({"a": entry(), "__metadata__": {}}, FOUR), a=("F32", (1,))),
    _good("metadata null", build({"__metadata__": None})),
    _good("space in front", build('\n {"a":{' + _ONE + "}}", FOUR), a=("F32", (1,))),
    _good("space behind", build('{"a":{' + _ONE + "}}\n\r\t  ", FOUR), a=("F32", (1,))),
    _good("scalar", build({"a": entry(shape=[])}, FOUR), a=("F32", ())),
    _good("no elements", build({"a": entry(shape=[0], offsets=[0, 0])}), a=("F32", (0,))),
    _good("two without elements", build({n: entry(shape=[3, 0], offsets=[0, 0]) for n in "ab"}),
          a=("F32", (3, 0)), b=("F32", (3, 0))),
    _good("empty between", build({"a": entry(), "z": entry(shape=[0], offsets=[4, 4]),
          "b": entry(offsets=[4, 8])}, bytes(8)),
          a=("F32", (1,)), z=("F32", (0,)), b=("F32", (1,))),
    _good("0, then huge", build({"a": entry(shape=[0, 2**63, 4], offsets=[0, 0])}),
          a=("F32", (0, 2**63, 4))),
    _good("huge, then 0", build({"a": entry(shape=[2**64 - 1, 0], offsets=[0, 0])}),
          a=("F32", (2**64 - 1, 0))),
    _good("names not in byte order", build({"b": entry(offsets=[4, 8]), "a": entry()}, bytes(8)),
          b=("F32", (1,)), a=("F32", (1,))),
    _good("empty name", build({"": entry()}, FOUR), **{"": ("F32", (1,))}),
    _good("NUL in a name", build(r'{"\u0000":{' + _ONE + "}}", FOUR), **{"\0": ("F32", (1,))}),
    _good("pair of surrogates", build(r'{"\ud83d\ude00":{' + _ONE + "}}", FOUR),
          **{"\U0001f600": ("F32", (1,))}),
    _good("odd length", build('{"a":{' + _ONE + "}} ", FOUR), a=("F32", (1,))),
    *(_dtype_size(dtype, 8) for dtype in ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0",
      "F8_E4M3FNUZ", "F8_E5M2FNUZ")),
    *(_dtype_size(dtype, 16) for dtype in ("I16", "U16", "F16", "BF16")),
    *(_dtype_size(dtype, 32) for dtype in ("I32", "U32", "F32")),
    *(_dtype_size(dtype, 64) for dtype in ("C64", "F64", "I64", "U64")),
    _dtype_size("F4", 4), _dtype_size("F6_E2M3", 6), _dtype_size("F6_E3M2", 6),
]  # fmt: skip

BROKEN = [*LENGTHS, *JSON, *FIELDS, *LAYOUT, *OTHER_FORMATS, *STRICTER]
CASES = [*BROKEN, *VALID]
