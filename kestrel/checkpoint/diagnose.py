"""Say what a file is when it is not what its name promises.

Half of all load failures that users report are files that never were weights: Git LFS pointers,
error pages saved by a downloader, archives of another format. Their first bytes tell.
"""

from __future__ import annotations

import re

__all__ = ["HEAD_BYTES", "describe"]

#: How much of a file's beginning describe() wants to see.
HEAD_BYTES = 1024

_AGAIN = "download the file again"
_PICKLE = (
    "Kestrel does not unpickle, because a pickle can run any code: convert the model with "
    "transformers' save_pretrained, which writes safetensors"
)
_UNPACK = "unpack it first"

_MAGIC = (
    (b"PK\x03\x04", f"a ZIP archive, as torch.save writes it: {_PICKLE}"),
    (b"GGUF", "a GGUF file, the format of llama.cpp: Kestrel reads Hugging Face safetensors"),
    (b"tjgg", "a GGML file, the old format of llama.cpp: Kestrel reads Hugging Face safetensors"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it: get the safetensors version"),
    (b"\x93NUMPY", "a NumPy array file: get the safetensors version"),
    (b"\x1f\x8b\x08", f"gzip-compressed data: {_UNPACK}"),
    (b"BZh", f"bzip2-compressed data: {_UNPACK}"),
    (b"\xfd7zXZ\x00", f"xz-compressed data: {_UNPACK}"),
    (b"\x28\xb5\x2f\xfd", f"zstd-compressed data: {_UNPACK}"),
)


def describe(head: bytes, size: int) -> str | None:
    """Name the kind of file and what to do about it, or return None when nothing is recognised.

    Args:
        head: the first bytes of the file, HEAD_BYTES of them or all.
        size: bytes in the whole file.
    """
    if size == 0:
        return f"an empty file: {_AGAIN}"
    if head.startswith(b"version https://git-lfs"):
        return _lfs_pointer(head)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    # A header length can begin with the same two bytes: only a length no file has means a pickle.
    if re.match(rb"\x80[\x02-\x05]", head) and int.from_bytes(head[:8], "little") > size:
        return f"a Python pickle, as torch.save wrote it: {_PICKLE}"
    if len(head) >= 8 and not any(head):
        return f"zeros where the file should begin (an unfinished download): {_AGAIN}"
    return _text(head)


def _lfs_pointer(head: bytes) -> str:
    found = re.search(rb"^size (\d{1,18})\s*$", head, re.MULTILINE)
    real = f" (the file itself has {int(found[1]):,} bytes)" if found else ""
    return f"a Git LFS pointer{real}: run `git lfs pull` in the model's folder"


def _text(head: bytes) -> str | None:
    # Cutting at HEAD_BYTES may have split a character, so a broken tail is forgiven.
    text = head.decode("utf-8", "ignore")
    if len(text.encode("utf-8")) < len(head) - 3 or not text.strip():
        return None
    if any(not char.isprintable() and char not in "\t\r\n" for char in text):
        return None
    start = " ".join(text.split())[:60]
    lower = start.lower()
    if lower.startswith(("<!doctype html", "<html", "<head")):
        return (
            "an HTML page (a login, error or preview page saved under this name): "
            "download the file itself, not the page about it"
        )
    if lower.startswith(("<?xml", "<error")):
        return f"an XML text, perhaps a server's error message ({start!r}): {_AGAIN}"
    if lower.startswith(("{", "[")):
        return f"a JSON text ({start!r}), perhaps an index or a server's answer: {_AGAIN}"
    return f"a text that begins with {start!r}, perhaps a server's error message: {_AGAIN}"
