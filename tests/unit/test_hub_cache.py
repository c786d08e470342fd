"""The hub's local cache, read without network and without huggingface_hub."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from checkpoints import INDEX_NAME, tiny_llama_config, tiny_llama_tensors, write_checkpoint

import kestrel
from kestrel.errors import CheckpointError, HubUnavailableError, RequestError
from kestrel.hub import Snapshot, is_cached, model_folder
from kestrel.hub.cache import CachedRepo

CONFIG = tiny_llama_config(num_hidden_layers=1)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch) -> None:
    """An empty cache, a folder without models, and no network: what would ask for it is refused."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def repo(tmp_path, demo_model) -> Path:
    """``org/name`` in the cache, sharded, as huggingface_hub writes it; returns its folder."""
    source = write_checkpoint(
        tmp_path / "source", CONFIG, tiny_llama_tensors(CONFIG, 1), shards=3, tokenizer=demo_model
    )
    return into_cache(source, tmp_path / "home" / "hub" / "models--org--name", COMMIT, "main")


def into_cache(source: Path, repo: Path, commit: str, *refs: str) -> Path:
    """Put a folder's files into a repository of the cache: blobs, links to them, and refs."""
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir(exist_ok=True)
    for path in source.iterdir():
        blob = hashlib.sha1(path.read_bytes()).hexdigest()
        (repo / "blobs" / blob).write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(f"../../blobs/{blob}")
    for ref in refs:
        (repo / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return repo


def refusal(model: object, error: type[Exception] = HubUnavailableError, **options: object) -> str:
    with pytest.raises(error) as caught:
        model_folder(model, **options)
    return str(caught.value)


# What is found


def test_a_branch_a_tag_and_a_commit_are_found(repo):
    snapshot = repo / "snapshots" / COMMIT
    (repo / "refs" / "refs" / "pr").mkdir(parents=True)
    (repo / "refs" / "refs" / "pr" / "4").write_text(COMMIT + "\n")
    for text in ("org/name", "org/name@main", f"org/name@{COMMIT}", "org/name@refs/pr/4"):
        assert model_folder(text) == snapshot
        assert is_cached(text)
    assert not is_cached("org/other") and not is_cached("not an id")
    assert Snapshot(snapshot).refs == ["main", "refs/pr/4"]


def test_the_model_is_named_by_its_id(repo):
    with kestrel.load("org/name", backend="null") as model:
        assert model.name == "org/name"
        assert model.folder == repo / "snapshots" / COMMIT
    (repo / "refs" / "main").rename(repo / "refs" / "v2")
    assert Snapshot.of(repo / "snapshots" / COMMIT).label == "org/name@v2"
    (repo / "refs" / "v2").unlink()
    assert Snapshot.of(repo / "snapshots" / COMMIT).label == f"org/name@{COMMIT[:12]}"
    assert Snapshot.of(repo) is None


def test_a_folder_of_that_name_goes_before_the_hub(repo, demo_model):
    os.mkdir("org")
    os.symlink(demo_model, "org/name")
    assert model_folder("org/name") == "org/name"
    os.unlink("org/name")
    os.symlink("nowhere", "org/name")  # not the hub's model by accident either
    with pytest.raises(CheckpointError, match="a link to nowhere"):
        kestrel.load("org/name")


def test_a_path_object_is_always_a_path(repo):
    path = Path("org/name")
    assert model_folder(path) is path
    with pytest.raises(CheckpointError, match="there is no such folder"):
        kestrel.load(path)


def test_files_instead_of_links(repo):
    # What huggingface_hub writes on systems without symbolic links.
    snapshot = repo / "snapshots" / COMMIT
    for path in snapshot.iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    (repo / "refs" / "main").write_text(COMMIT)
    assert model_folder("org/name") == snapshot
    kestrel.load("org/name", backend="null").close()


# What is not there


def test_nothing_cached_and_offline(tmp_path, monkeypatch):
    for name, value in (("HF_HUB_OFFLINE", "1"), ("TRANSFORMERS_OFFLINE", "yes")):
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv(name, value)
        message = refusal("org/name")
        assert message == (
            f"org/name: {name}={value} forbids to ask the hub; the cache "
            f"{tmp_path / 'home' / 'hub'} does not have it: unset it, or give a folder"
        )


def test_another_revision_is_cached(repo):
    message = refusal("org/name@v2")
    assert "does not have it, only org/name: unset it" in message


@pytest.mark.parametrize("content", ["", "  ", "../../../etc", "0123\n4567", "\xff"])
def test_a_ref_that_names_no_commit_is_none(repo, content):
    (repo / "refs" / "main").write_bytes(content.encode("latin-1"))
    assert f"only org/name@{COMMIT[:12]}" in refusal("org/name")


def test_a_ref_whose_snapshot_was_deleted(repo):
    (repo / "refs" / "main").write_text(OTHER)
    message = refusal("org/name")
    assert "its copy in the cache is incomplete" in message
    assert f"{OTHER} lacks config.json, tokenizer.json, model.safetensors" in message


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", INDEX_NAME, "model-00002-of-00003.safetensors"],
)
def test_a_half_filled_cache_names_what_it_lacks(repo, name):
    snapshot = repo / "snapshots" / COMMIT
    target = os.readlink(snapshot / name)
    (repo / "blobs" / "0123.abc.incomplete").touch()
    # A link whose blob is gone, then no link either.
    (snapshot / target).unlink()
    message = refusal("org/name")
    assert "its copy in the cache is incomplete" in message
    assert f"{snapshot / name}: a link to {target}, which is not there" in message
    (snapshot / name).unlink()
    message = refusal("org/name")
    assert f"{snapshot} lacks {name} (1 download was cut off in {repo / 'blobs'})" in message


def test_a_download_that_was_cut_before_the_ref_was_written(repo):
    (repo / "refs" / "main").unlink()
    (repo / "snapshots" / COMMIT / "model-00002-of-00003.safetensors").unlink()
    message = refusal("org/name")
    assert "does not have it, only a part" in message
    assert "lacks model-00002-of-00003.safetensors" in message


def test_a_cached_index_that_is_none_is_named(repo):
    (repo / "snapshots" / COMMIT / INDEX_NAME).unlink()
    (repo / "snapshots" / COMMIT / INDEX_NAME).write_text("[]")
    assert INDEX_NAME in refusal("org/name", CheckpointError)


def test_refresh_is_for_models_of_the_hub(repo, demo_model):
    assert "found the demo model: leave it out" in refusal(None, RequestError, refresh=True)
    assert f"found {demo_model}" in refusal(demo_model, RequestError, refresh=True)
    assert "expected True or False, found 1" in refusal("org/name", RequestError, refresh=1)
    message = refusal("org/name", refresh=True)
    assert "HF_HUB_OFFLINE=1 forbids" in message and "can be used without refresh" in message


# What may be missing unseen


def test_files_that_the_repository_may_have_are_named(repo):
    snapshot = Snapshot(repo / "snapshots" / COMMIT)
    (note,) = snapshot.notes()
    assert "special_tokens_map.json, added_tokens.json, chat_template.jinja" in note
    assert "--refresh" in note
    # Known from an earlier answer "no such file", which huggingface_hub keeps as an empty file ...
    marker = repo / ".no_exist" / COMMIT / "generation_config.json"
    marker.parent.mkdir(parents=True)
    marker.touch()
    (note,) = snapshot.notes()
    assert "generation_config.json" not in note and "chat_template.jinja" in note
    # ... from the list of the commit's files ...
    tree = repo / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir()
    tree.write_text(json.dumps({"format_version": 1, "files": {"chat_template.jinja": {}}}))
    (note,) = snapshot.notes()
    assert "special_tokens_map.json" not in note and "chat_template.jinja" in note
    tree.write_text("[")  # of no use, and no reason to stop
    assert len(snapshot.notes()) == 1
    # ... or because the repository was fetched whole.
    (snapshot.folder / ".gitattributes").touch()
    assert snapshot.notes() == []


def test_the_note_reaches_the_user(repo):
    with kestrel.load("org/name", backend="null") as model:
        assert any("not known whether org/name has them" in note for note in model.notes)
    assert any("not known whether" in note for note in inspect_id()["notes"])


def inspect_id() -> dict:
    from kestrel.inspection import inspect_folder

    return inspect_folder(model_folder("org/name"))


def test_inspect_names_the_snapshot_and_its_revision(repo):
    report = inspect_id()
    assert report["folder"] == str(repo / "snapshots" / COMMIT)
    assert report["hub"] == {"id": "org/name", "commit": COMMIT, "revisions": ["main"]}


def test_a_record_is_read_back(tmp_path):
    repo = CachedRepo.of(tmp_path, "org/name")
    snapshot = repo.snapshot(COMMIT)
    snapshot.folder.mkdir(parents=True)
    repo.record("refs/pr/1", snapshot, ["chat_template.jinja"])
    repo.record(COMMIT, snapshot, [])
    assert repo.find("refs/pr/1") == repo.find(COMMIT) == snapshot
    assert snapshot.lacks_for_sure("chat_template.jinja")
    assert [path.name for path in (repo.folder / "refs").rglob("*") if path.is_file()] == ["1"]
