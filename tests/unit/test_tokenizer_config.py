"""tokenizer_config.json beside tokenizer.json: what is followed, as in transformers, what noted."""

import json

import pytest

from kestrel.errors import TokenizerError
from kestrel.tokenizer import Tokenizer

TEXT = "Once<|eos|> upon<tool> Once a time"


def token(content: str, special: bool) -> dict[str, object]:
    flags = dict(lstrip=False, rstrip=False, normalized=False, single_word=False)
    return {"content": content, "special": special, **flags}


#: Name -> (keys of tokenizer_config.json, whether <|eos|> is special in tokenizer.json,
#: texts that a decoded answer leaves out, part of a note or None).
CASES = {
    "nothing": ({}, True, {"<|bos|>", "<|eos|>"}, None),
    "named, not special there": ({"eos_token": "<|eos|>"}, False, {"<|bos|>", "<|eos|>"}, None),
    "named, a word there": ({"pad_token": "Once"}, True, {"<|bos|>", "<|eos|>", "Once"}, None),
    "named as an object": (
        {"eos_token": {**token("<|eos|>", True), "__type": "AddedToken"}}, False,
        {"<|bos|>", "<|eos|>"}, None,
    ),
    "added, special in the config": (
        {"added_tokens_decoder": {"1": token("<|eos|>", True)}}, False,
        {"<|bos|>", "<|eos|>"}, None,
    ),
    "added, special in tokenizer.json": (
        {"added_tokens_decoder": {"1": token("<|eos|>", False)}}, True,
        {"<|bos|>", "<|eos|>"}, "'<|eos|>' is not special there, in tokenizer.json it is",
    ),
    "added under another id": (
        {"added_tokens_decoder": {"7": token("<|eos|>", True)}}, True,
        {"<|bos|>", "<|eos|>"}, "'<|eos|>' has id 7 there and 1 in tokenizer.json, which decides",
    ),
    "a name of the model's own": (
        {"extra_special_tokens": {"tool_token": "Once"}}, True,
        {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "under a key of the model's own": (
        {"image_token": "Once"}, True, {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "under a key of the model's own, as an object": (
        {"image_token": {**token("Once", True), "__type": "AddedToken"}}, True,
        {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "listed, a word there": (
        {"additional_special_tokens": ["Once"]}, True, {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "listed under the new key": (
        {"extra_special_tokens": ["Once"]}, True, {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "listed under both keys": (
        {"extra_special_tokens": ["Once"], "additional_special_tokens": ["a"]}, True,
        {"<|bos|>", "<|eos|>", "Once"}, None,
    ),
    "listed beside names of the model's own": (
        {"extra_special_tokens": {"tool_token": "Once"}, "additional_special_tokens": ["a"]}, True,
        {"<|bos|>", "<|eos|>", "Once", "a"}, None,
    ),
    "listed, not special there": (
        {"additional_special_tokens": ["<|eos|>"]}, False, {"<|bos|>"}, None,
    ),
    "adds what the post-processor does not": (
        {"add_eos_token": True, "eos_token": "<|eos|>"}, True, {"<|bos|>", "<|eos|>"},
        "add_eos_token is true, the post-processor of tokenizer.json adds none: the post-proc",
    ),
    "adds not what the post-processor does": (
        {"add_bos_token": False, "bos_token": "<|bos|>"}, True, {"<|bos|>", "<|eos|>"},
        "add_bos_token is false, the post-processor of tokenizer.json adds one: the post-proc",
    ),
}  # fmt: skip

#: Settings that are only said not to be followed, and what is said.
NOTES = {
    "added_tokens_decoder: 1 of its tokens are not in tokenizer.json, as '<tool>'": {
        "added_tokens_decoder": {"4096": token("<tool>", True), "1": token("<|eos|>", True)}
    },
    "additional_special_tokens: 2 of its tokens are not in tokenizer.json, as '<tool>'": {
        "additional_special_tokens": ["<|eos|>", "<tool>", token("<x>", True)]
    },
    "extra_special_tokens: 1 of its tokens are not in tokenizer.json": {
        "extra_special_tokens": ["<tool>"]
    },
    "pad_token '<tool>' is no token of tokenizer.json: not used": {"pad_token": "<tool>"},
    "split_special_tokens is not followed": {"split_special_tokens": True},
    "clean_up_tokenization_spaces is not followed": {"clean_up_tokenization_spaces": True},
}


@pytest.fixture
def write(demo_model, tmp_path):
    def write_folder(config: dict[str, object], eos_is_special: bool = True):
        data = json.loads((demo_model / "tokenizer.json").read_text())
        for added in data["added_tokens"]:
            added["special"] = added["special"] and (eos_is_special or added["id"] != 1)
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return write_folder


@pytest.mark.parametrize("name", CASES)
def test_special_tokens_and_notes(write, name):
    config, eos_is_special, special, note = CASES[name]
    tokenizer = Tokenizer.from_folder(write(config, eos_is_special))
    assert tokenizer.special_tokens == special
    assert [note in warning for warning in tokenizer.warnings] == [True] * (note is not None)


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
def test_ids_and_text_are_those_of_transformers(write, name):
    transformers = pytest.importorskip("transformers")
    config, eos_is_special, _, _ = CASES[name]
    folder = write(config, eos_is_special)
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(TEXT)
    assert ids == theirs(TEXT)["input_ids"]
    for skip in (False, True):
        text = theirs.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == text
    assert ours.named_tokens == theirs.special_tokens_map


@pytest.mark.parametrize("note", NOTES)
def test_what_is_not_followed_is_said(write, note):
    tokenizer = Tokenizer.from_folder(write(NOTES[note]))
    [warning] = tokenizer.warnings
    assert "tokenizer_config.json: " in warning and note in warning
    assert tokenizer.vocab_size == 4096  # no id that no model has learned


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"added_tokens_decoder": ["<tool>"]}, "added_tokens_decoder: expected an object of"),
        ({"added_tokens_decoder": {"x": token("a", True)}}, "added_tokens_decoder: expected an ob"),
        ({"added_tokens_decoder": {"1": "<|eos|>"}}, "added_tokens_decoder: expected an object of"),
        ({"added_tokens_decoder": {"1": {}}}, "added_tokens_decoder: expected a text"),
        ({"additional_special_tokens": [1]}, "additional_special_tokens: expected a text"),
        ({"extra_special_tokens": {"a": 1}}, "extra_special_tokens: expected a text"),
        ({"add_bos_token": "yes"}, "add_bos_token: expected true or false"),
    ],
)
def test_what_cannot_be_read(write, config, part):
    folder = write(config)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(folder)
    assert f"{folder / 'tokenizer_config.json'}: {part}" in str(caught.value)
