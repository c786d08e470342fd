"""Checkpoint: which files a folder means, and what is said when it means none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from checkpoints import (
    INDEX_NAME,
    round_to,
    tiny_llama_config,
    tiny_llama_tensors,
    write_checkpoint,
    write_safetensors,
)
from kestrel.checkpoint import Checkpoint
from kestrel.errors import CheckpointError, ConfigError, HeaderError

CONFIG = tiny_llama_config(num_hidden_layers=1)
TENSORS = tiny_llama_tensors(CONFIG, seed=11)
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture
def single(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "single", CONFIG, TENSORS)


@pytest.fixture
def sharded(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "sharded", CONFIG, TENSORS, shards=2)


def refusal(folder, error=CheckpointError) -> str:
    with pytest.raises(error) as caught:
        Checkpoint(folder)
    return str(caught.value)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_folder_is_read_whole(tmp_path, dtype, shards, mmap):
    generation = {"eos_token_id": [1, 2], "temperature": 0.7}
    folder = write_checkpoint(tmp_path, CONFIG, TENSORS, dtype, shards, generation)
    checkpoint = Checkpoint(folder, mmap=mmap)
    assert checkpoint.folder == folder
    assert checkpoint.config == CONFIG
    assert checkpoint.generation_config == generation
    nbytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    copied = f"weights: {nbytes:,} bytes are copied into memory, not mapped"
    assert checkpoint.notes == ([] if mmap else [copied])
    assert len(checkpoint.files) == shards
    assert list(checkpoint.tensors) == list(TENSORS)
    for name, values in TENSORS.items():
        view = checkpoint.tensors[name]
        assert view.dtype.value == dtype
        np.testing.assert_array_equal(view.to_numpy_f32(), round_to(values, dtype))


def test_a_checkpoint_cannot_be_changed(single):
    checkpoint = Checkpoint(str(single))
    checkpoint.config["vocab_size"] = 1
    checkpoint.files.clear()
    checkpoint.notes.append("x")
    assert checkpoint.config["vocab_size"] == CONFIG["vocab_size"]
    assert checkpoint.files == [single / "model.safetensors"]
    assert checkpoint.notes == []
    assert checkpoint.generation_config is None
    with pytest.raises(TypeError):
        checkpoint.tensors["x"] = None


# S18 and the index


def test_a_missing_shard_is_named_before_any_work(sharded):
    (sharded / SHARDS[1]).unlink()
    # The first shard is broken too: had it been opened, the error would be about it.
    (sharded / SHARDS[0]).write_bytes(b"")
    message = refusal(sharded)
    assert f"{sharded / INDEX_NAME}: 1 of the 2 shards it names is not in the folder" in message
    assert SHARDS[1] in message and "download" in message


def test_the_index_names_a_tensor_that_its_shard_lacks(sharded):
    edit_index(sharded, lambda index: index["weight_map"].update({"model.extra": SHARDS[0]}))
    message = refusal(sharded)
    assert str(sharded / SHARDS[0]) in message and INDEX_NAME in message
    assert "the index names 1 tensor ('model.extra') that the shard lacks" in message


def test_a_shard_holds_a_tensor_that_the_index_does_not_name(sharded):
    edit_index(sharded, lambda index: index["weight_map"].pop("model.norm.weight"))
    checkpoint = Checkpoint(sharded)
    checkpoint.check_index(needless={"model.norm.weight"})
    with pytest.raises(CheckpointError) as caught:
        checkpoint.check_index(needless={"model.embed_tokens.weight"})
    message = str(caught.value)
    assert str(sharded / SHARDS[1]) in message and INDEX_NAME in message
    assert "the shard holds 1 tensor ('model.norm.weight') beyond the index" in message


def test_a_tensor_in_two_shards_is_refused(sharded):
    name = "model.embed_tokens.weight"
    second = {n: TENSORS[n] for n in Checkpoint(sharded).tensors if n in _names(sharded, 1)}
    write_safetensors(sharded / SHARDS[1], {**second, name: TENSORS[name] + 1}, "BF16")
    message = refusal(sharded)
    assert f"('{name}') beyond the index; the index puts '{name}' into {SHARDS[0]}" in message


def test_a_tensor_is_looked_for_in_the_shard_that_the_index_names(sharded):
    edit_index(sharded, lambda index: index["weight_map"].update({"model.norm.weight": SHARDS[0]}))
    message = refusal(sharded)
    assert "names 1 tensor ('model.norm.weight') that the shard lacks" in message


def test_long_lists_of_tensors_are_shortened(sharded):
    extra = {f"extra.{i}": SHARDS[0] for i in range(40)}
    edit_index(sharded, lambda index: index["weight_map"].update(extra))
    message = refusal(sharded)
    assert "names 40 tensors ('extra.0'" in message and "and 35 more" in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors",
             "..\\outside.safetensors", "C:outside.safetensors", "./" + SHARDS[0], "", ".", "..",
             "sub//x.safetensors", "a\0b", "sub/"],
)  # fmt: skip
def test_a_shard_name_stays_in_the_folder(sharded, name):
    write_safetensors(sharded.parent / "outside.safetensors", TENSORS)
    edit_index(sharded, lambda index: index["weight_map"].update({"model.norm.weight": name}))
    message = refusal(sharded)
    assert f"weight_map: shard name {name!r}" in message and "not opened" in message


def test_a_shard_may_lie_in_a_folder_below(sharded):
    (sharded / "parts").mkdir()
    os.rename(sharded / SHARDS[1], sharded / "parts" / SHARDS[1])
    edit_index(sharded, lambda index: index["weight_map"].update(
        {n: f"parts/{s}" for n, s in index["weight_map"].items() if s == SHARDS[1]}))  # fmt: skip
    checkpoint = Checkpoint(sharded)
    assert checkpoint.files == [sharded / SHARDS[0], sharded / "parts" / SHARDS[1]]
    assert len(checkpoint.tensors) == len(TENSORS)


@pytest.mark.parametrize(
    ("index", "part"),
    [
        ([], "expected a JSON object"),
        ({}, "weight_map: expected an object of tensor name to shard name, found None"),
        ({"weight_map": []}, "weight_map: expected an object"),
        ({"weight_map": {}}, "weight_map: expected an object of tensor name to shard name"),
        ({"weight_map": {"a": 1}}, "weight_map['a']: expected a shard's file name, found 1"),
        ({"weight_map": {"a": [SHARDS[0]]}}, "weight_map['a']: expected a shard's file name"),
        ({"weight_map": {"a": "x"}, "metadata": 3}, "metadata: expected an object, found 3"),
    ],
)
def test_an_index_of_another_form_is_refused(sharded, index, part):
    (sharded / INDEX_NAME).write_text(json.dumps(index))
    message = refusal(sharded)
    assert message.startswith(str(sharded / INDEX_NAME)) and part in message


@pytest.mark.parametrize("stated", [1, "many", None, True, 1e9])
def test_a_wrong_total_size_is_a_note(sharded, stated):
    total = sum(view.nbytes for view in Checkpoint(sharded).tensors.values())
    edit_index(sharded, lambda index: index["metadata"].update(total_size=stated))
    (note,) = Checkpoint(sharded).notes
    assert f"metadata.total_size is {stated!r}" in note and f"{total:,} bytes" in note


def test_unknown_keys_of_the_index_are_a_note(sharded):
    edit_index(sharded, lambda index: index.update(weights=1))
    (note,) = Checkpoint(sharded).notes
    assert "'weights'" in note and INDEX_NAME in note


def test_an_index_without_metadata_is_fine(sharded):
    edit_index(sharded, lambda index: index.pop("metadata"))
    assert Checkpoint(sharded).notes == []


# S19 and the choice of files


def test_the_index_decides_and_other_files_are_left_alone(sharded):
    other = {name: values + 1 for name, values in TENSORS.items()}
    write_safetensors(sharded / "model.safetensors", other, "BF16")
    checkpoint = Checkpoint(sharded)
    assert checkpoint.files == [sharded / name for name in SHARDS]
    for name, values in TENSORS.items():
        found = checkpoint.tensors[name].to_numpy_f32()
        np.testing.assert_array_equal(found, round_to(values, "BF16"))
    assert checkpoint.notes == [f"{sharded}: not used, left alone: model.safetensors"]


def test_an_index_whose_shards_are_gone_does_not_fall_back(sharded):
    write_safetensors(sharded / "model.safetensors", TENSORS)
    for name in SHARDS:
        (sharded / name).unlink()
    assert "2 of the 2 shards it names are not in the folder" in refusal(sharded)


def test_model_safetensors_is_meant_when_others_lie_beside(single):
    (single / "adapter.safetensors").write_bytes(b"not even read")
    checkpoint = Checkpoint(single)
    assert checkpoint.files == [single / "model.safetensors"]
    assert checkpoint.notes == [f"{single}: not used, left alone: adapter.safetensors"]


def test_the_only_safetensors_file_is_meant(single):
    os.rename(single / "model.safetensors", single / "weights.safetensors")
    assert Checkpoint(single).files == [single / "weights.safetensors"]


def test_two_files_without_an_index_are_asked_about(single):
    os.rename(single / "model.safetensors", single / "a.safetensors")
    write_safetensors(single / "b.safetensors", TENSORS)
    message = refusal(single)
    assert "2 safetensors files (a.safetensors, b.safetensors)" in message
    assert "rename the one to load to model.safetensors" in message


@pytest.mark.parametrize("count", [1, 2])
def test_shards_without_their_index_are_refused(sharded, count):
    (sharded / INDEX_NAME).unlink()
    for name in SHARDS[count:]:
        (sharded / name).unlink()
    message = refusal(sharded)
    assert ", ".join(SHARDS[:count]) in message and f"download {INDEX_NAME}" in message


# S16: files that are something else


@pytest.mark.parametrize(
    ("name", "error"),
    [("config.json", ConfigError), ("model.safetensors", HeaderError)],
)
def test_a_pointer_file_says_so(single, name, error):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1044992\n"
    (single / name).write_text(pointer)
    message = refusal(single, error)
    assert message.startswith(f"{single / name}: {len(pointer)} bytes, a Git LFS pointer")
    assert "1,044,992 bytes" in message and "git lfs pull" in message


def test_a_cut_shard_says_how_much_is_missing(sharded):
    path = sharded / SHARDS[1]
    os.truncate(path, path.stat().st_size - 4096)
    message = refusal(sharded, HeaderError)
    assert message.startswith(f"{path}: ends 4,096 bytes early") and "download it again" in message


def edit_index(folder: Path, change) -> None:
    path = folder / INDEX_NAME
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def _names(folder: Path, shard: int) -> list[str]:
    weight_map = json.loads((folder / INDEX_NAME).read_text())["weight_map"]
    return [name for name, file in weight_map.items() if file == SHARDS[shard]]
