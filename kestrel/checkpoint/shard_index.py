"""``model.safetensors.index.json``: which shard holds which tensor, checked against the shards."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kestrel.checkpoint.files import broken_link, read_json_object
from kestrel.checkpoint.safetensors_file import SafetensorsFile
from kestrel.errors import CheckpointError

__all__ = ["ShardIndex"]

_LISTED = 5


class ShardIndex:
    """The index of a sharded checkpoint.

    Attributes:
        path: the index file.
        weight_map: tensor name to shard name.
        shards: shard names, sorted, each once.
        notes: what is odd in the index but harmless.

    Raises CheckpointError when the file is not an index, or names a path outside its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        index = read_json_object(path, lambda message: CheckpointError(message, path))
        self.weight_map = self._weight_map(index.pop("weight_map", None))
        self._metadata = index.pop("metadata", None)
        if not isinstance(self._metadata, (dict, type(None))):
            raise self._wrong("metadata", "an object", self._metadata)
        if index:
            keys = ", ".join(repr(key[:80]) for key in index)
            self.notes.append(f"{path}: keys without a known meaning, left alone: {keys}")
        self.shards = sorted(set(self.weight_map.values()))

    def check_shards_exist(self) -> None:
        """Raise CheckpointError naming every shard that is not in the folder."""
        missing = [name for name in self.shards if not os.path.exists(self.path.parent / name)]
        if not missing:
            return
        link = broken_link(self.path.parent / missing[0])
        if link:
            raise CheckpointError(link, self.path.parent / missing[0])
        raise CheckpointError(
            f"{self.path}: {len(missing)} of the {len(self.shards)} shards it names "
            f"{'is' if len(missing) == 1 else 'are'} not in the folder: {_listing(missing)}: "
            "download the folder again",
            self.path,
        )

    def check_contents(self, files: Mapping[str, SafetensorsFile]) -> dict[str, list[str]]:
        """Compare names both ways: the index against each shard, and each shard against the index.

        Args:
            files: shard name to its opened file.

        Returns shard name to the tensors in it that the index does not name at all: only who uses
        the tensors knows whether it can do without them.
        Raises CheckpointError naming the index, the shard and the tensors.
        """
        beyond: dict[str, list[str]] = {}
        promised: dict[str, set[str]] = {shard: set() for shard in self.shards}
        for name, shard in self.weight_map.items():
            promised[shard].add(name)
        for shard, file in files.items():
            missing = sorted(promised[shard] - file.tensors.keys())
            extra = sorted(file.tensors.keys() - promised[shard])
            elsewhere = [name for name in extra if name in self.weight_map]
            if missing or elsewhere:
                raise self.disagreement(file.path, missing, extra)
            if extra:
                beyond[shard] = extra
        return beyond

    def disagreement(self, shard: Path, missing: list[str], extra: list[str]) -> CheckpointError:
        """The error about tensors that a shard lacks, and tensors that it should not hold."""
        faults = []
        if missing:
            faults.append(f"the index names {_count(missing)} that the shard lacks")
        if extra:
            faults.append(f"the shard holds {_count(extra)} beyond the index")
        elsewhere = next((name for name in extra if name in self.weight_map), None)
        if elsewhere is not None:
            faults.append(f"the index puts {elsewhere!r} into {self.weight_map[elsewhere]}")
        return CheckpointError(
            f"{shard} and {self.path.name} disagree: {'; '.join(faults)}: "
            "files of two versions seem to be mixed: download the folder again",
            shard,
        )

    def size_note(self, found: int) -> str | None:
        """A sentence when ``metadata.total_size`` is not the ``found`` bytes of all tensors."""
        stated = (self._metadata or {}).get("total_size", found)
        if stated == found and not isinstance(stated, bool):
            return None
        return (
            f"{self.path}: metadata.total_size is {reprlib.repr(stated)}, "
            f"the tensors have {found:,} bytes; the tensors count"
        )

    def _weight_map(self, value: object) -> dict[str, str]:
        if not isinstance(value, dict) or not value:
            raise self._wrong("weight_map", "an object of tensor name to shard name", value)
        for shard in set(item for item in value.values() if isinstance(item, str)):
            if not _is_inside(shard):
                raise CheckpointError(
                    f"{self.path}: weight_map: shard name {shard[:200]!r}: expected the plain name "
                    "of a file in this folder: it is not opened; correct the index",
                    self.path,
                )
        for name, shard in value.items():
            if not isinstance(shard, str):
                raise self._wrong(f"weight_map[{name[:200]!r}]", "a shard's file name", shard)
        return value

    def _wrong(self, key: str, expected: str, found: object) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: {key}: expected {expected}, found {reprlib.repr(found)}: "
            "download the index again",
            self.path,
        )


def _is_inside(name: str) -> bool:
    """Whether a shard name stays in its folder, on every system, and is spelled in one way."""
    path = PurePosixPath(name)
    if not path.name or str(path) != name or path.is_absolute() or ".." in path.parts:
        return False
    return not any(char in "\\:" or ord(char) < 32 for char in name)


def _count(names: list[str]) -> str:
    noun = "tensor" if len(names) == 1 else "tensors"
    return f"{len(names)} {noun} ({_listing([repr(name[:200]) for name in names])})"


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
