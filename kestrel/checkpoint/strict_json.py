"""JSON read strictly: what two readers could take in two ways is refused.

Python's json module accepts duplicate keys (the last wins), ``NaN``, numbers that become infinite
and lone surrogates. In a checkpoint each of them means a damaged file, or one that another program
reads differently, so none is let through.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

__all__ = ["MAX_JSON_BYTES", "JsonError", "check_keys", "parse_json"]

#: The limit of the safetensors package for its header (100 MB, decimal), kept for every JSON file.
MAX_JSON_BYTES = 100_000_000

# No honest count or size comes near this; longer literals would cost quadratic time to convert.
_MAX_DIGITS = 100


class JsonError(ValueError):
    """The text is not JSON, or not JSON with one meaning; the message is the reason alone."""


def parse_json(data: bytes) -> object:
    """Parse UTF-8 JSON.

    Integers come back as int, except ``-0``, which JSON readers agree is a float. Raises JsonError
    with the reason; the caller adds the file and what to do.
    """
    text = _decode(data)
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise JsonError("not usable JSON: it is nested too deeply") from None
    # A lone surrogate can only come from an escape: UTF-8 itself cannot hold one.
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(value)
    return value


def check_keys(data: bytes) -> object:
    """Parse UTF-8 JSON, strict about duplicate keys alone.

    For a large file that another parser reads too: a third of the time of ``parse_json``. Raises
    JsonError as that does.
    """
    try:
        return json.loads(_decode(data), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise JsonError("not usable JSON: it is nested too deeply") from None
    except ValueError as error:
        raise error if isinstance(error, JsonError) else JsonError(str(error)) from None


def _decode(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise JsonError("not UTF-8: it begins with the byte order mark of UTF-16")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise JsonError(f"not UTF-8: byte 0x{byte:02x} at offset {error.start:,}") from None
    if text.startswith("\ufeff"):
        raise JsonError("not valid JSON: it begins with a byte order mark (BOM)")
    return text


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise JsonError(f"the key {key[:80]!r} stands twice in one object")
            seen.add(key)
    return result


def _integer(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise JsonError(f"a number of {len(text):,} digits")
    return -0.0 if text == "-0" else int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError(f"the number {text[:40]} is out of range")
    return value


def _constant(text: str) -> float:
    raise JsonError(f"{text} is not a JSON value")


def _refuse_surrogates(value: object) -> None:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise JsonError(f"the text {item[:80]!r} has half a surrogate pair") from None
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
