"""Fetching models from a hub: huggingface_hub against a server on this machine that speaks its API.

The network itself is never asked: HF_ENDPOINT names the local server in every process started here.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import INDEX_NAME, tiny_llama_config, tiny_llama_tensors, write_checkpoint
from hub_server import HubServer, Repo, commit, files_of
from processes import run_python
from system.command_line import run, start

pytest.importorskip("huggingface_hub", reason="huggingface_hub (the extra [hub]) is not installed")

CONFIG = tiny_llama_config(num_hidden_layers=1)
SHARDS = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
OFFLINE = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def files(tmp_path_factory, demo_model) -> dict[str, bytes]:
    """A model of three shards with a tokenizer, the smallest that Kestrel loads."""
    folder = tmp_path_factory.mktemp("model")
    tensors = tiny_llama_tensors(CONFIG, 1)
    return files_of(write_checkpoint(folder, CONFIG, tensors, shards=3, tokenizer=demo_model))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def settings(hub, tmp_path, monkeypatch) -> dict[str, str]:
    """Environment of a user of that hub, with an empty cache and no token."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def inspect(model: str, settings: dict[str, str], *options: str) -> dict:
    return json.loads(run("inspect", model, "--json", *options, environment=settings)[0])


def outcomes(models: list[str], settings: dict[str, str]) -> list[list[str]]:
    """For each model the class and the message of the error, in one process."""
    return json.loads(run_python(f"""
        import json
        from kestrel.errors import KestrelError
        from kestrel.hub import model_folder

        found = []
        for model in {models!r}:
            try:
                found.append(["", str(model_folder(model))])
            except KestrelError as error:
                found.append([type(error).__name__, str(error)])
        print(json.dumps(found))
    """, **settings).stdout)  # fmt: skip


def test_only_the_files_that_are_read_are_fetched_and_only_once(hub, settings, files, tmp_path):
    wanted = {
        **files,
        "generation_config.json": b'{"do_sample": true, "temperature": 0.5}',
        "chat_template.jinja": b"{{ messages }}",
        "additional_chat_templates/tools.jinja": b"{{ tools }}",
    }
    unwanted = ("README.md", ".gitattributes", "pytorch_model.bin", "model.q4.gguf", "merges.txt",
                "onnx/model.onnx", "onnx/config.json", "original/consolidated.00.pth",
                "consolidated.safetensors", "tf_model.h5", "tokenizer.model")  # fmt: skip
    hub.repos["org/name"] = Repo.of({**wanted, **dict.fromkeys(unwanted, b"unwanted")})
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, data in files.items():
        (plain / name).write_bytes(data)
    script = f"""
        import sys, kestrel
        with kestrel.load("org/name", threads=1) as model, kestrel.load({str(plain)!r}) as plain:
            logits = [each.session().prefill([3, 1, 4]).tobytes() for each in (model, plain)]
            assert logits[0] == logits[1]
            assert not any("not known" in note for note in model.notes), model.notes
            assert sorted(model.tokenizer.chat_templates) == ["default", "tools"]
            assert model.defaults.temperature == 0.5
            print(model.folder)
        print("huggingface_hub" in sys.modules)
    """
    folder, imported = run_python(script, **settings).stdout.splitlines()
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / commit(1)
    assert (folder, imported) == (str(snapshot), "True")
    assert files_of(snapshot) == wanted
    assert hub.fetched()[0] == "config.json"
    # From now on no request, no import of the library, and the same without the hub.
    hub.requests.clear()
    assert run_python(script, **settings).stdout.splitlines() == [folder, "False"]
    assert hub.requests == []
    assert run_python(script, **{**settings, **OFFLINE}).stdout.splitlines() == [folder, "False"]
    # Other programs find it too, and that there is no special_tokens_map.json.
    run_python(f"""
        import huggingface_hub as hub
        (repo,) = hub.scan_cache_dir().repos
        (revision,) = repo.revisions
        assert (repo.repo_id, revision.commit_hash) == ("org/name", {commit(1)!r})
        assert revision.refs == {{"main"}}
        path = hub.hf_hub_download("org/name", "config.json")
        assert path.endswith("snapshots/{commit(1)}/config.json")
        absent = hub.try_to_load_from_cache("org/name", "special_tokens_map.json")
        assert absent is hub._CACHED_NO_EXIST
    """, **{**settings, **OFFLINE})  # fmt: skip


def test_a_branch_stays_until_refresh(hub, settings, files):
    changed = {**files, SHARDS[1]: files[SHARDS[1]][:-1] + b"\1", "generation_config.json": b"{}"}
    repo = hub.repos["org/name"] = Repo.of(files)
    assert inspect("org/name", settings)["hub"]["commit"] == commit(1)
    repo.commits[commit(2)] = changed
    repo.branches |= {"main": commit(2), "v1": commit(1)}
    hub.requests.clear()
    hub.fetched()
    assert inspect("org/name", settings)["hub"]["commit"] == commit(1)
    assert hub.requests == []
    report = inspect("org/name", settings, "--refresh")
    assert report["hub"] == {"id": "org/name", "commit": commit(2), "revisions": ["main"]}
    assert sorted(hub.fetched()) == ["generation_config.json", SHARDS[1]]
    # The old commit by its tag: everything is there, only where the tag is had to be asked.
    report = inspect("org/name@v1", settings)
    assert report["hub"] == {"id": "org/name", "commit": commit(1), "revisions": ["v1"]}
    assert hub.fetched() == []
    out, err = run("org/name", environment=settings, status=2)
    assert "org/name is a model in the hub's cache: name it with --model org/name" in err


def test_ctrl_c_and_cut_lines_leave_what_the_next_call_goes_on_from(hub, settings, files, tmp_path):
    hub.repos["org/name"] = Repo.of(files)
    hub.stall.add(SHARDS[1])
    with start("inspect", "org/name", environment=settings) as process:
        assert hub.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        # The server still holds the second half back: nobody waits for it.
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.decode().endswith("kestrel: interrupted\n")
    assert SHARDS[0] in hub.fetched()
    hub.stall.clear()
    (_, message), = outcomes(["org/name"], {**settings, **OFFLINE})  # fmt: skip
    assert "does not have it, only a part" in message and SHARDS[1] in message
    # Some versions of huggingface_hub try again by themselves, some leave it to the next call.
    hub.cut.add(SHARDS[2])
    first = outcomes(["org/name"], settings)[0]
    assert first[0] in ("", "HubUnavailableError")
    assert inspect("org/name", settings)["hub"]["commit"] == commit(1)
    sent = hub.fetched()
    assert "config.json" not in sent and SHARDS[0] not in sent
    snapshot = tmp_path / "home" / "hub" / "models--org--name" / "snapshots" / commit(1)
    assert files_of(snapshot) == files


def test_an_incomplete_copy_is_completed(hub, settings, files):
    hub.repos["org/name"] = Repo.of(files)
    folder = Path(inspect("org/name", settings)["folder"])
    hub.fetched()
    (folder / os.readlink(folder / SHARDS[2])).unlink()
    message = outcomes(["org/name"], {**settings, **OFFLINE})[0][1]
    assert "incomplete" in message and SHARDS[2] in message
    message = outcomes(["org/name"], {**settings, "HF_ENDPOINT": "http://127.0.0.1:9"})[0][1]
    assert "could not be fetched" in message and SHARDS[2] in message
    assert outcomes(["org/name"], settings) == [["", str(folder)]]
    assert hub.fetched() == [SHARDS[2]]


def test_what_the_hub_refuses_and_what_cannot_be_used(hub, settings, files):
    def without(*names: str) -> dict[str, bytes]:
        return {name: data for name, data in files.items() if name not in names}

    config = {**CONFIG, "model_type": "mamba"}
    hub.repos |= {
        "org/gated": Repo.of(files, gated=True, token="right"),
        "org/private": Repo.of(files, private=True, token="right"),
        "org/name": Repo.of(files),
        "org/bin": Repo.of({"config.json": files["config.json"], "pytorch_model.bin": b"x"}),
        "org/gguf": Repo.of({"name.Q4_K_M.gguf": b"x"}),
        "org/lora": Repo.of({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}),
        "org/words": Repo.of({**without("tokenizer.json"), "tokenizer.model": b"x"}),
        "org/part": Repo.of(without(SHARDS[1])),
        "org/index": Repo.of(without(INDEX_NAME)),
        "org/mamba": Repo.of({**files, "config.json": json.dumps(config).encode()}),
        "org/teapot": Repo.of(files, status=418),
    }
    gone, denied = "HubError", "HubUnavailableError"
    anonymous = {
        "org/gated": (denied, ["gated (401)", f"licence at {hub.url}/org/gated", "HF_TOKEN"]),
        "org/private": (gone, ["no folder of that name", "no such model, or a private one"]),
        "org/nothing": (gone, ["no folder of that name", f"({hub.url}/org/nothing)", "HF_TOKEN"]),
        "org/name@v9": (gone, ["no revision 'v9'", f"{hub.url}/org/name/tree/main"]),
        "org/bin": ("CheckpointError", ["only PyTorch pickles (pytorch_model.bin)", "Convert"]),
        "org/gguf": ("CheckpointError", ["only GGUF (name.Q4_K_M.gguf)"]),
        "org/lora": (gone, ["no config.json (it has adapter_config.json, adapter_model"]),
        "org/words": (gone, ["no tokenizer.json (it has", "AutoTokenizer"]),
        "org/part": (gone, [f"{INDEX_NAME} names {SHARDS[1]}, which the repository does not have"]),
        "org/index": ("CheckpointError", ["without their index"]),
        "org/mamba": ("UnsupportedModelError", ["config.json: model_type", "'mamba'"]),
        "org/teapot": (denied, ["the hub answered 418", "try again later"]),
    }
    for (model, (kind, parts)), (found, message) in zip(
        anonymous.items(), outcomes(list(anonymous), settings), strict=True
    ):
        assert found == kind and all(part in message for part in parts), (model, found, message)
    sent = hub.fetched()
    assert not set(sent) & {SHARDS[1], SHARDS[2], "pytorch_model.bin", "adapter_model.safetensors"}
    with_token = {
        "org/gated": ("HubUnavailableError", "gated (403)"),
        "org/private": ("HubError", "no such model, or a private one"),
    }
    found = outcomes(list(with_token), {**settings, "HF_TOKEN": "wrong"})
    for (kind, part), outcome in zip(with_token.values(), found, strict=True):
        assert outcome[0] == kind and part in outcome[1]
    allowed = outcomes(list(with_token), {**settings, "HF_TOKEN": "right"})
    assert [kind for kind, _ in allowed] == ["", ""]


@pytest.mark.parametrize(
    ("model", "status", "change", "parts"),
    [
        ("org/nothing", 2, {}, ["no such model, or a private one"]),
        ("org/name", 3, {"HF_ENDPOINT": "http://127.0.0.1:9"},
         ["could not be fetched from http://127.0.0.1:9", "refused", "check the network"]),
    ],
    ids=["unknown", "no network"],
)  # fmt: skip
def test_the_program_ends_in_one_line(hub, settings, model, status, change, parts):
    environment = {**settings, **change}
    out, err = run("--model", model, "Once", environment=environment, status=status)
    assert out == "" and err.count("\n") == 1 and err.startswith(f"kestrel: error: {model}: ")
    assert all(part in err for part in parts), err


def test_a_cache_that_cannot_be_written(hub, settings, files, tmp_path):
    hub.repos["org/name"] = Repo.of(files)
    (tmp_path / "file").touch()
    cache = str(tmp_path / "file" / "hub")
    ((kind, message),) = outcomes(["org/name"], {**settings, "HF_HUB_CACHE": cache})
    assert kind == "HubUnavailableError"
    assert f"cannot be written into {cache}: [Errno 20] Not a directory" in message


def test_without_the_library(hub, settings, files):
    """A cached model runs, and for any other the error says what to install."""
    hub.repos |= {"org/name": Repo.of(files), "org/other": Repo.of(files)}
    inspect("org/name", settings)
    hub.requests.clear()
    run_python("""
        import sys
        sys.modules["huggingface_hub"] = None  # importing it is then an ImportError
        import kestrel
        kestrel.load("org/name", threads=1).close()
        try:
            kestrel.load("org/other")
        except kestrel.errors.HubUnavailableError as error:
            assert "does not have it" in str(error), error
            assert "pip install huggingface_hub (the extra [hub])" in str(error), error
        else:
            raise AssertionError
    """, **settings)  # fmt: skip
    assert hub.requests == []
