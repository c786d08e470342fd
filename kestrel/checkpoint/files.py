"""Open the files of a checkpoint, with messages that say what stands there instead.

Paths are never resolved: in the hub's cache ``snapshots/REV/config.json`` is a link to
``../../blobs/HASH``, and only the link's side has the right names and siblings.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kestrel.checkpoint.diagnose import HEAD_BYTES, describe
from kestrel.checkpoint.strict_json import MAX_JSON_BYTES, JsonError, parse_json
from kestrel.errors import CheckpointError, KestrelError

__all__ = ["broken_link", "open_regular", "read_json_object", "read_small"]


def broken_link(path: Path) -> str | None:
    """Say where a symbolic link points when its target is missing; None for anything else."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    return (
        f"{path}: a link to {os.readlink(path)}, which is not there: "
        "copy the folder with its links followed (cp -RL), or download it again"
    )


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a regular file for reading. Returns the file and its size in bytes.

    Raises CheckpointError when it is missing, a broken link, a folder, a device, or unreadable.
    """
    try:
        # Asked before opening, because opening a named pipe would wait for its writer.
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device or pipe"
            raise CheckpointError(f"{path}: expected a file, found {kind}", path)
        file = open(path, "rb")
        return file, os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        message = broken_link(path) or f"{path}: there is no such file"
        raise CheckpointError(message, path) from None
    except (OSError, ValueError) as error:
        # ValueError: a zero byte, or a character that the file system's encoding lacks.
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"{str(path)!r} cannot be opened: {reason}", path) from error


def read_json_object(path: Path, fail: Callable[[str], KestrelError]) -> dict[str, object]:
    """Read a JSON file whose top level is an object.

    Args:
        path: the file.
        fail: makes the error to raise from a message that already names the file.
    """
    try:
        data = read_small(path)
    except CheckpointError as error:
        raise fail(str(error)) from None
    try:
        value = parse_json(data)
    except JsonError as error:
        kind = describe(data[:HEAD_BYTES], len(data))
        # Text is what a JSON file should be, so only the fault in it is news.
        if kind is None or kind.startswith(("a JSON text", "a text")):
            kind = f"{error}: correct it, or download it again"
        raise fail(f"{path}: {len(data):,} bytes, {kind}") from None
    if not isinstance(value, dict):
        found = {list: "a list", str: "a text", type(None): "null"}.get(type(value), repr(value))
        raise fail(f"{path}: expected a JSON object {{...}} at the top, found {found[:60]}")
    return value


def read_small(path: Path) -> bytes:
    """The bytes of a file of text. Raises CheckpointError as ``open_regular``, and above 100 MB."""
    file, size = open_regular(path)
    with file:
        if size > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path}: {size:,} bytes: expected at most {MAX_JSON_BYTES:,}", path
            )
        try:
            return file.read()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}", path) from error
