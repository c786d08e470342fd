"""special_tokens_map.json and added_tokens.json: read where transformers reads them."""

import json
import shutil

import pytest

from kestrel.errors import TokenizerError
from kestrel.text.chat_template import encode_chat
from kestrel.tokenizer import Tokenizer

TEXT = "Once<|eos|> upon a time"

#: Name -> (keys added to tokenizer_config.json, special_tokens_map.json, named tokens beside
#: bos_token and eos_token, which files have as <|bos|> and <|eos|>, texts that are special too).
#: All as transformers 5.24 has them.
MAPS = {
    "another token": ({}, {"eos_token": "Once"}, {"eos_token": "Once"}, {"Once"}),
    "one more token": ({}, {"pad_token": "a"}, {"pad_token": "a"}, {"a"}),
    "null": ({}, {"eos_token": None}, {"eos_token": None}, set()),
    "a key of the model's own": ({}, {"x_token": "a"}, {"x_token": "a"}, {"a"}),
    "names": ({}, {"extra_special_tokens": {"x": "a"}}, {"x": "a"}, {"a"}),
    "a list": ({}, {"additional_special_tokens": ["a"]}, {}, {"a"}),
    "the new list": ({}, {"extra_special_tokens": ["a"]}, {}, {"a"}),
    "lists in both files": (
        {"additional_special_tokens": ["Once"]}, {"additional_special_tokens": ["a"]}, {}, {"Once"},
    ),
    "the new list after an old one": (
        {"additional_special_tokens": ["Once"]}, {"extra_special_tokens": ["a"]}, {}, {"Once", "a"},
    ),
    "beside added_tokens_decoder": (
        {"added_tokens_decoder": {}}, {"eos_token": "Once", "additional_special_tokens": ["a"]},
        {}, set(),
    ),
}  # fmt: skip


@pytest.fixture
def write(demo_model, tmp_path):
    def write_folder(config=None, **files):
        shutil.copy(demo_model / "tokenizer.json", tmp_path)
        ours = json.loads((demo_model / "tokenizer_config.json").read_text())
        for name, content in {"tokenizer_config": {**ours, **(config or {})}, **files}.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return write_folder


@pytest.mark.parametrize("name", MAPS)
def test_the_map_goes_before_the_config(write, name):
    config, older, named, special = MAPS[name]
    tokenizer = Tokenizer.from_folder(write(config, special_tokens_map=older))
    expected = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", **named}
    assert tokenizer.named_tokens == {k: v for k, v in expected.items() if v is not None}
    assert tokenizer.special_tokens == {"<|bos|>", "<|eos|>"} | special
    assert tokenizer.warnings == []


@pytest.mark.reference
@pytest.mark.parametrize("name", MAPS)
def test_the_map_as_in_transformers(write, name):
    transformers = pytest.importorskip("transformers")
    config, older, _, _ = MAPS[name]
    folder = write(config, special_tokens_map=older)
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.named_tokens == theirs.special_tokens_map
    ids = ours.encode(TEXT)
    assert ids == theirs(TEXT)["input_ids"]
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_what_the_map_names_and_the_vocabulary_lacks(write):
    older = {"eos_token": "<|x|>", "additional_special_tokens": ["<|y|>"]}
    tokenizer = Tokenizer.from_folder(write(special_tokens_map=older))
    assert tokenizer.warnings == [
        "special_tokens_map.json: eos_token '<|x|>' is no token of tokenizer.json: not used",
        "special_tokens_map.json: additional_special_tokens: 1 of its tokens are not in "
        "tokenizer.json, as '<|y|>': not used, they are encoded as text",
    ]
    assert tokenizer.eos_ids == {}


def test_an_end_token_is_from_the_file_that_names_it(write):
    tokenizer = Tokenizer.from_folder(write(special_tokens_map={"eos_token": "Once"}))
    assert tokenizer.eos_ids == {3895: "special_tokens_map.json eos_token 'Once'"}


def test_a_template_reads_names_of_the_models_own(write):
    tokenizer = Tokenizer.from_folder(write({"image_token": "<|eos|>"}))
    messages = [{"role": "user", "content": "Once"}]
    template = "{{ image_token }}{{ messages[0].content }}"
    assert encode_chat(tokenizer, messages, template=template) == [1, 3895]


def test_added_tokens_that_tokenizer_json_has(write):
    tokenizer = Tokenizer.from_folder(write(added_tokens={"<|eos|>": 1}))
    assert tokenizer.warnings == [] and tokenizer.encode(TEXT) == [0, 3895, 1, 562, 260, 565]


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ({"<|eos|>": 1, "<|new|>": 4096}, "'<|new|>' with 4096, there None"),
        ({"<|eos|>": 7}, "'<|eos|>' with 7, there 1"),
        ({"Once": 3895}, "'Once' with 3895, there None"),  # a word, found within others
        ({"<|eos|>": True}, "'<|eos|>' with True, there 1"),
    ],
)
def test_added_tokens_that_tokenizer_json_lacks_are_refused(write, added, found):
    folder = write(added_tokens=added)
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_folder(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'added_tokens.json'}: ") and found in message
    assert caught.value.file == str(folder / "added_tokens.json")


@pytest.mark.reference
def test_transformers_would_add_them(write):
    transformers = pytest.importorskip("transformers")
    new = {"<|new|>": 4096}
    theirs = transformers.AutoTokenizer.from_pretrained(write(added_tokens=new))
    assert theirs("a<|new|>")["input_ids"] == [0, 66, 4096]
    folder = write({"added_tokens_decoder": {}}, added_tokens=new)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), Tokenizer.from_folder(folder)
    assert theirs("a<|new|>")["input_ids"] == ours.encode("a<|new|>")
