"""Find a model's files in its folder, and say what stands there instead when they are absent."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from kestrel.checkpoint.files import broken_link
from kestrel.errors import CheckpointError

__all__ = ["INDEX_NAME", "WeightFiles", "check_folder", "find_weights", "list_names"]

INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LISTED = 8


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Where the weights are: either ``index`` names the shards, or ``single`` holds all of them."""

    index: Path | None
    single: Path | None


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder as a Path. Raises CheckpointError when it is not a folder that can be listed."""
    text = os.fspath(folder)
    if not text:
        raise CheckpointError("the model's path is empty: expected a Hugging Face folder", text)
    path = Path(text)
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            return path
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise CheckpointError(broken_link(path) or _no_folder(text), text) from None
    except OSError as error:
        raise CheckpointError(f"{text}: cannot be opened: {error.strerror}", text) from error
    raise CheckpointError(
        f"{text}: expected a folder, found a file: give the folder that holds it "
        f"with config.json and tokenizer.json ({path.parent})",
        text,
    )


def _no_folder(text: str) -> str:
    advice = "expected a Hugging Face model folder, or the id of a model on the hub: ORG/NAME"
    if "://" in text:
        advice += ", its address without the host"
    return f"{text}: there is no such folder; {advice}"


def list_names(folder: Path) -> list[str]:
    """Names in the folder, sorted. Raises CheckpointError when it cannot be read or is empty."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be listed: {error.strerror}", folder) from error
    if not names:
        raise CheckpointError(
            f"{folder}: the folder is empty: expected config.json, tokenizer.json and "
            f"{_SINGLE_NAME}",
            folder,
        )
    if "config.json" not in names and "snapshots" in names and "blobs" in names:
        revisions = sorted(path.name for path in (folder / "snapshots").glob("*"))
        raise CheckpointError(
            f"{folder}: the hub's cache of a model, not the model's folder: give one of its "
            f"snapshots: {folder / 'snapshots' / (revisions or ['REVISION'])[0]}",
            folder,
        )
    return names


def find_weights(folder: Path, names: list[str]) -> WeightFiles:
    """Choose the weight files. The index decides; without one exactly one file must be meant.

    Raises CheckpointError when there is no safetensors file, or no single choice.
    """
    if INDEX_NAME in names:
        return WeightFiles(folder / INDEX_NAME, None)
    if _SINGLE_NAME in names:
        return WeightFiles(None, folder / _SINGLE_NAME)
    candidates = [name for name in names if name.endswith(".safetensors")]
    if not candidates:
        raise CheckpointError(f"{folder}: {_no_weights(folder, names)}", folder)
    shards = [name for name in candidates if _is_shard(name)]
    if shards:
        raise CheckpointError(
            f"{folder}: shards ({_listing(shards)}) without their index: "
            f"download {INDEX_NAME} into the folder",
            folder,
        )
    if len(candidates) > 1:
        raise CheckpointError(
            f"{folder}: {len(candidates)} safetensors files ({_listing(candidates)}) and neither "
            f"{INDEX_NAME} nor {_SINGLE_NAME} to choose: rename the one to load to {_SINGLE_NAME}",
            folder,
        )
    return WeightFiles(None, folder / candidates[0])


def _is_shard(name: str) -> bool:
    found = _SHARD.search(name)
    return found is not None and int(found[2]) > 1


def _no_weights(folder: Path, names: list[str]) -> str:
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if pickles:
        return (
            f"no safetensors file, only PyTorch pickles ({_listing(pickles)}), which can run any "
            "code when read. Convert them: python -c \"from transformers import "
            f"AutoModelForCausalLM as M; M.from_pretrained('{folder}').save_pretrained('NEW')\""
        )
    ggufs = [name for name in names if name.endswith(".gguf")]
    if ggufs:
        return (
            f"no safetensors file, only GGUF ({_listing(ggufs)}), the format of llama.cpp: "
            "get the original Hugging Face folder of the model"
        )
    return (
        f"no safetensors file: expected {_SINGLE_NAME} or {INDEX_NAME} with its shards, "
        f"found {_listing(names)}: download the weights too"
    )


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
