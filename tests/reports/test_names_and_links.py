"""User reports S20 and S21: tensors under other prefixes, and the hub's cache of links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from api.tiny import write_tiny
from processes import run_python

import kestrel
from kestrel.errors import MissingTensorError

IDS = [3, 1, 4, 1, 5, 9]


def logits(folder: Path) -> bytes:
    with kestrel.load(folder, threads=1) as model:
        return model.session().prefill(IDS).tobytes()


def rename(prefix: str, only: str = ""):
    """Changes ``model.X`` to prefix + X in the tensors' names, or in those that end in ``only``."""

    def change(tensors: dict) -> None:
        for name in [n for n in tensors if n.startswith("model.") and n.endswith(only)]:
            tensors[prefix + name.removeprefix("model.")] = tensors.pop(name)

    return change


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", ""])
def test_s20_every_tensor_under_another_prefix(prefix: str, tied: bool, tmp_path: Path) -> None:
    """Only ``model.X`` is renamed, as in the report: an untied head keeps its name."""
    plain = write_tiny(tmp_path / "plain", tie_word_embeddings=tied)
    renamed = write_tiny(tmp_path / "renamed", rename(prefix), tie_word_embeddings=tied)
    assert logits(renamed) == logits(plain)


@pytest.mark.parametrize("prefix", ["language_model.model.", ""])
def test_s20_one_tensor_under_another_prefix(prefix: str, tmp_path: Path) -> None:
    """Never a start with a weight that was not read: both names are in the message."""
    only = "layers.1.mlp.up_proj.weight"
    folder = write_tiny(tmp_path / "m", rename(prefix, only))
    with pytest.raises(MissingTensorError) as refusal:
        kestrel.load(folder)
    assert f"(1 of 21): 'model.{only}'" in str(refusal.value)
    assert f"without a place (1): {prefix + only!r}" in str(refusal.value)


def cached(model: Path, repo: Path) -> Path:
    """A snapshot of a model in a folder of the hub's cache: links to nameless blobs."""
    snapshot, blobs = repo / "snapshots" / "0123abcd", repo / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, source in enumerate(sorted(model.iterdir())):
        (blobs / f"{number:064x}").write_bytes(source.read_bytes())
        (snapshot / source.name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot


def test_s21_a_snapshot_of_links_runs_offline(demo_model: Path, tmp_path: Path) -> None:
    """All files are links to nameless blobs; no cache variable, no network, no HOME to look in."""
    snapshot = cached(demo_model, tmp_path)
    code = f"""
        import os, socket, kestrel
        for name in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "HOME"):
            os.environ.pop(name, None)

        def refuse(*arguments, **options):
            raise AssertionError("a connection was asked for")

        socket.socket.connect = socket.getaddrinfo = refuse
        params = kestrel.SamplingParams(temperature=0.0, max_tokens=8)
        for path in ({str(snapshot)!r}, {str(demo_model)!r}):
            with kestrel.load(path, threads=1) as model:
                print(model.generate("Once upon a time", params).ids)
    """
    linked, plain = run_python(code, HF_HUB_OFFLINE="1").stdout.splitlines()
    assert linked == plain
    link = snapshot / "tokenizer.json"
    target = os.readlink(link)
    (snapshot / target).unlink()
    with pytest.raises(kestrel.errors.TokenizerError) as refusal:
        kestrel.load(snapshot)
    assert str(refusal.value).startswith(f"{link}: a link to {target}, which is not there")


@pytest.mark.parametrize("flag", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_s21_an_offline_flag_does_not_beat_a_full_cache(
    flag: str, demo_model: Path, tmp_path: Path
) -> None:
    """By its id, from the place where the cache is by default, and without huggingface_hub."""
    repo = tmp_path / ".cache" / "huggingface" / "hub" / "models--org--name"
    snapshot = cached(demo_model, repo)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0123abcd")
    code = """
        import os, socket, sys
        for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        sys.modules["huggingface_hub"] = None
        import kestrel

        def refuse(*arguments, **options):
            raise AssertionError("a connection was asked for")

        socket.socket.connect = socket.getaddrinfo = refuse
        with kestrel.load("org/name", threads=1) as model:
            print(model.folder, model.name, model.generate("Once upon a time", max_tokens=1).text)
    """
    out = run_python(code, HOME=str(tmp_path), **{flag: "1"}).stdout
    assert out.startswith(f"{snapshot} org/name ")
