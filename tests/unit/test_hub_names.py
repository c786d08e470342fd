"""The ids of models on the hub, and which cache and network they are looked for in."""

from __future__ import annotations

import pytest
from processes import run_python

from kestrel.errors import HubError
from kestrel.hub import HubId, model_folder
from kestrel.hub.cache import cache_folder, offline_flag

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M", "main"),
        ("org/name_1.5-B@v1.0", "org/name_1.5-B", "v1.0"),
        ("org/name@refs/pr/4", "org/name", "refs/pr/4"),
        (f"org/name@{COMMIT}", "org/name", COMMIT),
    ],
)
def test_ids(text, repo, revision):
    parsed = HubId.parse(text)
    assert parsed == HubId(repo, revision)
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    ["", "gpt2", "/org/name", "./name", "../name", "org/name/", "a/b/c", "org/na me", "org\\name",
     "~/name", "org/.name", "org/name-", "or--g/name", "org/na..me", "org/name.git", "org/näme",
     "hf://org/name", "https://huggingface.co/org/name", "name@main", "o/" + 95 * "n"],
)  # fmt: skip
def test_what_has_not_the_shape_of_an_id_is_left_a_path(text):
    assert HubId.parse(text) is None
    assert model_folder(text) is text


@pytest.mark.parametrize("revision", ["", "../../x", "a/../../b", "/x", "x/", "a b", "-x", "a@b"])
def test_a_revision_that_cannot_be_one(revision):
    with pytest.raises(HubError) as caught:
        model_folder(f"org/name@{revision}")
    text = f"org/name@{revision}: expected a branch, a tag or a commit after the @"
    assert str(caught.value) == f"{text}, found {revision!r}"


def test_variables_mean_what_they_mean_to_huggingface_hub():
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    # Its constants are read at import, so it is imported anew for each setting.
    run_python("""
        import importlib, itertools, os
        from pathlib import Path
        import huggingface_hub.constants as constants
        from kestrel.hub.cache import cache_folder, offline_flag

        os.environ["HOME"] = "/home/someone"
        names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
        values = ("/cache", "~/cache", "$HOME/c/d", "/xdg")
        for chosen in itertools.product((False, True), repeat=4):
            for name, value, is_set in zip(names, values, chosen):
                os.environ.pop(name, None)
                if is_set:
                    os.environ[name] = value
            importlib.reload(constants)
            assert cache_folder() == Path(constants.HF_HUB_CACHE), chosen
        flags = (None, "", "0", "1", "true", "on", "2")
        for hub, transformers in itertools.product(flags, repeat=2):
            for name, value in (("HF_HUB_OFFLINE", hub), ("TRANSFORMERS_OFFLINE", transformers)):
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            importlib.reload(constants)
            assert (offline_flag() is not None) == constants.HF_HUB_OFFLINE, (hub, transformers)
    """)


def test_a_variable_that_is_empty_is_not_set(monkeypatch, tmp_path):
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME",
                 "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):  # fmt: skip
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "huggingface" / "hub"
    assert offline_flag() is None
