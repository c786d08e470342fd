"""The files of a tokenizer: settings that are followed or not, lost text, broken files."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kestrel.errors import CheckpointError, TokenizerError
from kestrel.tokenizer import Tokenizer


@pytest.fixture
def copy(demo_model, tmp_path) -> Path:
    """The demo model's tokenizer files, to be changed."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_model / name, tmp_path / name)
    return tmp_path


@pytest.fixture(scope="module")
def demo(demo_model) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)


def edit(path: Path, **changes: object) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_truncation_does_not_cut(copy, demo):
    edit(
        copy / "tokenizer.json",
        truncation={
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
        },
        padding={
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<|bos|>",
        },
    )
    text = "There was once a poor woodcutter who"
    assert Tokenizer.from_folder(copy).encode(text) == demo.encode(text)


def test_bytes_without_a_token_are_not_lost_in_silence(copy):
    data = json.loads((copy / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    lost = "\u0105"  # stands for byte 0x05 in a byte-level vocabulary
    vocab["<gone>"] = vocab.pop(lost)
    (copy / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(copy)
    assert tokenizer.describe()["bytes_without_token"] == ["0x05"]
    with pytest.warns(UserWarning, match="no token for 2 of the 6 bytes of the prompt"):
        tokenizer.encode("a\x05b\x05cd")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("<|eos|>", 1), ({"content": "<|eos|>", "lstrip": False, "special": True}, 1), (None, None)],
)
def test_named_tokens_may_be_objects(copy, value, expected):
    edit(copy / "tokenizer_config.json", bos_token=value)
    assert Tokenizer.from_folder(copy).bos_id == expected


def test_named_token_that_is_none(copy):
    edit(copy / "tokenizer_config.json", eos_token="<|nowhere|>")
    tokenizer = Tokenizer.from_folder(copy)
    assert tokenizer.eos_ids == {}
    assert any("'<|nowhere|>' is no token of tokenizer.json" in w for w in tokenizer.warnings)


def test_clean_up_is_said_not_to_be_followed(copy):
    edit(copy / "tokenizer_config.json", clean_up_tokenization_spaces=True)
    tokenizer = Tokenizer.from_folder(copy)
    assert any("clean_up_tokenization_spaces is not followed" in w for w in tokenizer.warnings)


def test_without_tokenizer_config(copy):
    os.remove(copy / "tokenizer_config.json")
    tokenizer = Tokenizer.from_folder(copy)
    assert tokenizer.bos_id is None and tokenizer.encode("Once") == [0, 3895]


@pytest.mark.parametrize(
    ("others", "parts"),
    [
        ((), ["there is no such file: download it"]),
        (("tokenizer.model",), ["only tokenizer.model", "save_pretrained"]),
        (("vocab.json", "merges.txt"), ["only vocab.json, merges.txt", "AutoTokenizer"]),
    ],
)
def test_without_tokenizer_json(tmp_path, others, parts):
    for name in others:
        (tmp_path / name).write_text("x")
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert isinstance(caught.value, CheckpointError)
    assert caught.value.file == str(tmp_path / "tokenizer.json")
    for part in ("tokenizer.json: ", *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 135\n", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "an HTML page"),
        (b"\x00" * 100, "zeros where the file should begin"),
        (b"[]", "a JSON text"),
        (b"{", "cannot be read as a tokenizer"),
        (b"{}", "cannot be read as a tokenizer"),
        (b'{"version": "1.0"}', "cannot be read as a tokenizer"),
        (b'{"version": "9.9", "model": {"type": "BPE", "vocab": {}, "merges": []}}', "cannot be"),
        (b'{"model": {"type": "Wonder", "vocab": {}}}', "cannot be read as a tokenizer"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "cannot be read"),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}', "cannot be read"),
    ],
)
def test_broken_tokenizer_json(tmp_path, data, part):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(tmp_path / "tokenizer.json") in str(caught.value) and part in str(caught.value)


def test_mutated_tokenizer_json_lets_only_tokenizer_error_escape(copy, demo):
    """Seeded changes of single characters: accepted, or a TokenizerError; never a panic."""
    import random

    draw = random.Random(5)
    original = (copy / "tokenizer.json").read_text()
    head = original.index('"vocab"')  # what precedes the vocabulary is all structure
    tail = original.rindex("]]") if "]]" in original[-200:] else len(original) - 200
    for _ in range(60):
        place = draw.choice([draw.randrange(head), draw.randrange(tail, len(original))])
        text = original[:place] + draw.choice('{}[],:"0a') + original[place + 1 :]
        (copy / "tokenizer.json").write_text(text)
        try:
            Tokenizer.from_folder(copy).encode("Once upon a time")
        except TokenizerError:
            pass


@pytest.mark.parametrize(
    ("name", "data", "part"),
    [
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"[]", "expected a JSON object"),
        ("tokenizer_config.json", b'{"bos_token": 1}', "bos_token: expected a text"),
        ("tokenizer_config.json", b'{"bos_token": {}}', "bos_token: expected a text"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template: expected a text"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "a"}]}', "chat_template: expected"),
        ("special_tokens_map.json", b'{"eos_token": []}', "eos_token: expected a text"),
        ("added_tokens.json", b"garbage", "not valid JSON"),
        ("chat_template.jinja", b"\xff", "expected UTF-8, found byte 0xff at offset 0"),
    ],
)
def test_broken_files_beside_it(copy, name, data, part):
    (copy / name).write_bytes(data)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(copy)
    assert name in str(caught.value) and part in str(caught.value)


def test_through_the_links_of_the_hub_cache(demo_model, tmp_path):
    # S21: snapshots/REV/tokenizer.json -> ../../blobs/HASH.
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate(("tokenizer.json", "tokenizer_config.json")):
        shutil.copy(demo_model / name, blobs / str(number))
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert Tokenizer.from_folder(snapshot).bos_id == 0
    (blobs / "0").unlink()
    with pytest.raises(TokenizerError, match="a link to ../../blobs/0, which is not there"):
        Tokenizer.from_folder(snapshot)


def test_twenty_thousand_added_tokens(copy):
    """S28: such a tokenizer opens, and its added tokens are found."""
    data = json.loads((copy / "tokenizer.json").read_text())
    settings = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    data["added_tokens"] += [
        {"id": 4096 + n, "content": f"<|extra_{n}|>", **settings} for n in range(20_000)
    ]
    (copy / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(copy)
    assert tokenizer.vocab_size == 24_096
    assert tokenizer.encode("Once<|extra_19999|>", add_special_tokens=False) == [3895, 24_095]
