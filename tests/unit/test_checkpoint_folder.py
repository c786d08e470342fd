"""Folders that are no checkpoint, configs that are no JSON, and the hub's cache of links."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from checkpoints import round_to, tiny_llama_config, tiny_llama_tensors, write_checkpoint
from kestrel.checkpoint import Checkpoint
from kestrel.errors import CheckpointError, ConfigError

CONFIG = tiny_llama_config(num_hidden_layers=1)
TENSORS = tiny_llama_tensors(CONFIG, seed=12)


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_checkpoint(tmp_path / "model", CONFIG, TENSORS)


def refusal(path, error=CheckpointError) -> str:
    with pytest.raises(error) as caught:
        Checkpoint(path)
    assert caught.value.file is not None
    return str(caught.value)


def test_folders_that_are_none(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "absent: there is no such folder" in refusal(tmp_path / "absent")
    assert "the model's path is empty" in refusal("")
    assert "there is no such folder" in refusal("a\0b")
    assert "there is no such folder" in refusal(folder / "config.json" / "x")
    message = refusal(folder / "model.safetensors")
    assert "expected a folder, found a file" in message and f"({folder})" in message


def test_an_address_of_the_hub_says_what_its_id_is():
    message = refusal("https://huggingface.co/HuggingFaceTB/SmolLM2-135M")
    assert "there is no such folder" in message and "the id of a model on the hub" in message


def test_a_local_folder_of_two_names_is_no_hub_id(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    os.rename(folder, tmp_path / "org" / "name")
    assert len(Checkpoint("org/name").tensors) == len(TENSORS)


def test_an_empty_folder(tmp_path):
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: the folder is empty") and "config.json" in message


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    message = refusal(folder, ConfigError)
    assert f"{folder / 'config.json'}: there is no such file" in message
    assert "the folder holds model.safetensors" in message


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    message = refusal(folder)
    assert "no safetensors file" in message and "found config.json" in message


def test_a_folder_of_pickles(folder):
    os.rename(folder / "model.safetensors", folder / "pytorch_model.bin")
    message = refusal(folder)
    assert "only PyTorch pickles (pytorch_model.bin)" in message
    assert f"from_pretrained('{folder}').save_pretrained" in message


def test_a_folder_of_gguf(folder):
    os.rename(folder / "model.safetensors", folder / "model-q4.gguf")
    assert "only GGUF (model-q4.gguf)" in refusal(folder)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(folder):
    (folder / "model.safetensors").chmod(0)
    assert "cannot be opened: Permission denied" in refusal(folder)


def test_a_config_that_is_a_folder(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json: expected a file, found a folder" in refusal(folder, ConfigError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert "expected a file, found a device or pipe" in refusal(folder, ConfigError)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "0 bytes, an empty file"),
        (b"[]", "expected a JSON object {...} at the top, found a list"),
        (b"null", "found null"),
        (b"3", "found 3"),
        (b"Entry not found", "not valid JSON: Expecting value at line 1, column 1"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        (b'{"a": NaN}', "NaN is not a JSON value"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON value"),
        (b'{"a": 1e400}', "1e400 is out of range"),
        (b'{"a": ' + b"7" * 200 + b"}", "a number of 200 digits"),
        (b'{"a": "\\ud83d"}', "half a surrogate pair"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b'{"a": "\xe9"}', "not UTF-8: byte 0xe9 at offset 7"),
        (b"<html><body>Sign in</body></html>", "33 bytes, an HTML page"),
        (b"PK\x03\x04" + bytes(30), "a ZIP archive"),
    ],
)
def test_a_config_that_is_no_json_object(folder, name, data, part):
    (folder / name).write_bytes(data)
    message = refusal(folder, ConfigError)
    assert message.startswith(f"{folder / name}: ") and part in message
    assert len(message) < 500


def test_a_config_of_absurd_size_is_not_read(folder):
    os.truncate(folder / "config.json", 10**12)
    message = refusal(folder, ConfigError)
    assert "1,000,000,000,000 bytes" in message and "at most 100,000,000" in message


def test_honest_oddities_of_configs_are_kept(folder):
    text = '{"a": 1e-5, "b": 12345678901234567890123, "c": "\\ud83d\\ude00", "d": null, "e": -0.0}'
    (folder / "config.json").write_text(text)
    assert Checkpoint(folder).config == json.loads(text)


# S21: the hub's cache


@pytest.fixture(params=[1, 2], ids=["single", "sharded"])
def snapshot(tmp_path, request) -> Path:
    """A folder as the hub's cache keeps it: every name is a relative link to a nameless blob."""
    source = write_checkpoint(tmp_path / "src", CONFIG, TENSORS, shards=request.param,
                              generation_config={"eos_token_id": 2})  # fmt: skip
    cache = tmp_path / "hub" / "models--org--name"
    target = cache / "snapshots" / "0123abcd"
    target.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(source.iterdir())):
        blob = f"{number:064x}"
        os.rename(path, cache / "blobs" / blob)
        (target / path.name).symlink_to(f"../../blobs/{blob}")
    shutil.rmtree(source)
    return target


def test_a_snapshot_is_opened_by_its_own_names(snapshot, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    for path in (snapshot, snapshot.relative_to(tmp_path)):
        checkpoint = Checkpoint(path)
        assert checkpoint.config == CONFIG
        assert checkpoint.generation_config == {"eos_token_id": 2}
        assert {file.parent for file in checkpoint.files} == {path}
        assert all(file.name.startswith("model") for file in checkpoint.files)
        assert {view.file.parent for view in checkpoint.tensors.values()} == {path}
        for name, values in TENSORS.items():
            found = checkpoint.tensors[name].to_numpy_f32()
            np.testing.assert_array_equal(found, round_to(values, "BF16"))


def test_a_link_to_the_snapshot_works_too(snapshot, tmp_path):
    (tmp_path / "current").symlink_to(snapshot)
    assert Checkpoint(tmp_path / "current").folder == tmp_path / "current"


def test_a_broken_link_names_link_and_target(snapshot):
    for path in sorted(snapshot.iterdir()):
        target = os.readlink(path)
        os.rename(path.parent / target, path.parent / "aside")
        error = ConfigError if path.name.endswith("config.json") else CheckpointError
        message = refusal(snapshot, error)
        assert message.startswith(f"{path}: a link to {target}, which is not there")
        os.rename(path.parent / "aside", path.parent / target)
    assert len(Checkpoint(snapshot).tensors) == len(TENSORS)


def test_a_broken_link_to_the_folder(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    assert f"{tmp_path / 'link'}: a link to nowhere" in refusal(tmp_path / "link")


def test_the_cache_folder_itself_points_to_its_snapshot(snapshot):
    message = refusal(snapshot.parent.parent)
    assert "the hub's cache of a model" in message and str(snapshot) in message
