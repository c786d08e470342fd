"""A Hugging Face model folder: its configs and its weights, opened and checked."""

from __future__ import annotations

import copy
import os
from collections.abc import Container, Mapping
from pathlib import Path
from types import MappingProxyType

from kestrel.checkpoint.files import read_json_object
from kestrel.checkpoint.folder import check_folder, find_weights, list_names
from kestrel.checkpoint.safetensors_file import SafetensorsFile, TensorView
from kestrel.checkpoint.shard_index import ShardIndex
from kestrel.errors import ConfigError

__all__ = ["Checkpoint"]

_CONFIG = "config.json"
_GENERATION_CONFIG = "generation_config.json"


class Checkpoint:
    """A model folder. Immutable, so threads may share it; weights stay in their files.

    ``model.safetensors.index.json`` decides which files hold the weights; without it
    ``model.safetensors`` does, or the only safetensors file there is. Other files are left alone.
    Links are opened by their own names, so a snapshot in the hub's cache works as it is.

    Args:
        folder: the model folder.
        mmap: map the weights into memory; False copies them, for network disks and large pages.

    Raises:
        ConfigError: config.json or generation_config.json is absent or not a JSON object.
        HeaderError: a weight file is not a valid safetensors file.
        CheckpointError: the folder, the index or a shard is absent, or they disagree.
        CapacityError: with ``mmap=False``, memory does not suffice.
    """

    __slots__ = (
        "_beyond", "_config", "_files", "_folder", "_generation_config", "_index", "_notes",
        "_tensors",
    )  # fmt: skip

    def __init__(self, folder: str | os.PathLike[str], mmap: bool = True) -> None:
        self._folder = check_folder(folder)
        names = list_names(self._folder)
        self._config = _read_config(self._folder, names)
        self._generation_config = None
        if _GENERATION_CONFIG in names:
            self._generation_config = _read_object(self._folder / _GENERATION_CONFIG)
        weights = find_weights(self._folder, names)
        self._notes: list[str] = []
        self._beyond: dict[str, list[str]] = {}
        self._index = None if weights.index is None else ShardIndex(weights.index)
        if self._index is None:
            opened = [SafetensorsFile(weights.single, mmap)]
        else:
            opened = self._open_shards(self._index, mmap)
        self._files = [file.path for file in opened]
        if not mmap:
            nbytes = sum(file.nbytes for file in opened)
            self._notes.append(f"weights: {nbytes:,} bytes are copied into memory, not mapped")
        self._tensors = MappingProxyType(
            {name: view for file in opened for name, view in file.tensors.items()}
        )
        self._note_other_files(names)

    @property
    def folder(self) -> Path:
        """The folder as given, links unresolved."""
        return self._folder

    @property
    def config(self) -> dict[str, object]:
        """config.json, a copy at each call."""
        return copy.deepcopy(self._config)

    @property
    def generation_config(self) -> dict[str, object] | None:
        """generation_config.json, a copy at each call; None when the folder has none."""
        return copy.deepcopy(self._generation_config)

    @property
    def tensors(self) -> Mapping[str, TensorView]:
        """Every tensor by name: shards in the order of their names, bytes in file order.

        What a shard holds beyond the index is among them, until ``check_index`` refuses it.
        """
        return self._tensors

    @property
    def files(self) -> list[Path]:
        """The weight files in use, in the order of ``tensors``."""
        return list(self._files)

    @property
    def notes(self) -> list[str]:
        """Sentences about what is odd or left alone, for the user to see."""
        return list(self._notes)

    def check_index(self, needless: Container[str] = ()) -> None:
        """Compare the shards with the index once more, by what is needed of them.

        Raises CheckpointError when a shard holds a tensor that the index does not name and that is
        not ``needless``: it may belong to another version of the model.
        """
        for shard, names in self._beyond.items():
            needed = [name for name in names if name not in needless]
            if needed:
                raise self._index.disagreement(self._folder / shard, [], needed)

    def _open_shards(self, index: ShardIndex, mmap: bool) -> list[SafetensorsFile]:
        index.check_shards_exist()
        files = {shard: SafetensorsFile(self._folder / shard, mmap) for shard in index.shards}
        self._beyond = index.check_contents(files)
        opened = list(files.values())
        self._notes += index.notes
        found = sum(view.nbytes for file in opened for view in file.tensors.values())
        note = index.size_note(found)
        if note:
            self._notes.append(note)
        return opened

    def _note_other_files(self, names: list[str]) -> None:
        used = {path.name for path in self._files}
        others = [n for n in names if n.endswith(".safetensors") and n not in used]
        if others:
            self._notes.append(f"{self._folder}: not used, left alone: {', '.join(others)}")


def _read_config(folder: Path, names: list[str]) -> dict[str, object]:
    if _CONFIG not in names:
        listing = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        raise ConfigError(
            f"{folder / _CONFIG}: there is no such file; the folder holds {listing}: "
            "give a Hugging Face model folder, or download the rest of it",
            file=folder / _CONFIG,
        )
    return _read_object(folder / _CONFIG)


def _read_object(path: Path) -> dict[str, object]:
    return read_json_object(path, lambda message: ConfigError(message, file=path))
