"""The tokenizer: expected ids of real models, BOS, control words, ids without text."""

import json
import warnings

import pytest
from unit.tokenizer_readme import FOLDERS, lists, opened

from kestrel.errors import RequestError
from kestrel.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def demo(demo_model) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)


@pytest.mark.parametrize("name", FOLDERS)
def test_expected_ids_of_the_readmes(shared_models, name):
    folder = shared_models / name
    tokenizer = opened(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one text begins with "<s>"
        for entry in lists(folder, "ids_without_special"):
            assert tokenizer.encode(entry["text"]) == entry["ids"], entry["text"]
            plain = tokenizer.encode(entry["text"], add_special_tokens=False)
            assert plain == entry["ids_without_special"], entry["text"]
    for entry in lists(folder, "greedy_ids"):
        assert tokenizer.encode(entry["prompt"]) == entry["prompt_ids"], entry["prompt"]
        assert tokenizer.decode(entry["greedy_ids"]) == entry["greedy_text"], entry["prompt"]
    assert lists(folder, "ids_without_special") or lists(folder, "greedy_ids")


def test_demo_model_without_the_shared_folder(demo):
    # From the model card of the demo model.
    assert demo.encode("Once upon a time") == [0, 3895, 562, 260, 565]
    assert demo.encode("Once upon a time", add_special_tokens=False) == [3895, 562, 260, 565]
    assert demo.decode([0, 3895, 562, 260, 565]) == "Once upon a time"
    assert demo.decode([0, 3895], skip_special_tokens=False) == "<|bos|>Once"
    assert (demo.bos_id, demo.vocab_size) == (0, 4096)
    assert demo.eos_ids == {1: "tokenizer_config.json eos_token '<|eos|>'"}


def test_first_space(shared_models):
    # S24: ids of the tokenizers library for stories260K and Mistral (U+2581 is a blank there).
    tokenizer = opened(shared_models / "stories260K")
    for text, tokens in (
        ("x", ["<s>", "\u2581", "x"]),
        (" x", ["<s>", "\u2581", "\u2581", "x"]),
        ("  x", ["<s>", "\u2581", "\u2581", "\u2581", "x"]),
    ):
        ids = tokenizer.encode(text)
        assert "".join(tokenizer.token(token_id) for token_id in ids) == "".join(tokens)
        assert tokenizer.decode(ids) == text


def test_two_bos_warn(demo):
    # S22: the text has one, and a raw prompt gets one more, as the reference does.
    with pytest.warns(UserWarning, match=r"begins with two '<\|bos\|>' \(id 0\)"):
        assert demo.encode("<|bos|>Once") == [0, 0, 3895]
    with pytest.warns(UserWarning, match="the text has both$"):
        assert demo.encode("<|bos|>" * 2, add_special_tokens=False) == [0, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert demo.encode("<|bos|>Once", add_special_tokens=False) == [0, 3895]
        assert demo.encode("Once") == [0, 3895]


def test_control_words_as_plain_text(demo):
    ids = demo.encode("<|eos|>", add_special_tokens=False, plain_content=True)
    assert 1 not in ids and demo.decode(ids) == "<|eos|>"
    assert demo.encode("<|eos|>", plain_content=True) == [0, *ids]  # BOS is not from the text
    assert demo.encode("<|eos|>", add_special_tokens=False) == [1]


@pytest.mark.parametrize("text", ["a\ud800", "\udc80", 7, None, b"bytes"])
def test_texts_that_are_none(demo, text):
    with pytest.raises(RequestError, match="^prompt: expected"):
        demo.encode(text)
    with pytest.raises(RequestError, match="^prompt: expected"):
        demo.encode(text, plain_content=True)


@pytest.mark.parametrize("token_id", [-1, 2**32, "3", 1.5, None])
def test_ids_that_are_none(demo, token_id):
    for call in (demo.token, demo.token_text, lambda bad: demo.decode([1, bad])):
        with pytest.raises(RequestError, match="token ids?: expected"):
            call(token_id)


def test_ids_without_text(demo):
    # S09: a model may have more rows of logits than the tokenizer has tokens.
    assert demo.ids_without_text(4096) == ()
    assert demo.ids_without_text(4100) == (4096, 4097, 4098, 4099)
    assert demo.token(4096) is None and demo.token_text(4096) == ""
    assert demo.decode([3895, 4096]) == "Once"


def test_token_text(demo, shared_models):
    assert [demo.token_text(i) for i in (0, 3895, 562)] == ["<|bos|>", "Once", " upon"]
    llama = opened(shared_models / "tokenizer-mistral-v0.1")
    assert llama.token_text(llama.token_id("\u2581Hello")) == " Hello"
    assert llama.token_text(llama.token_id("<0xE2>")) == "\ufffd"


def test_describe_is_json(demo):
    facts = json.loads(json.dumps(demo.describe()))
    assert facts["model"] == "BPE" and facts["vocab_size"] == 4096
    assert facts["pre_tokenizer"] == ["ByteLevel"] and facts["decoder"] == ["ByteLevel"]
    assert facts["post_processor"] == ["TemplateProcessing"] and facts["normalizer"] is None
    assert facts["named_tokens"]["eos_token"] == {"token": "<|eos|>", "id": 1}
    assert facts["added_around_a_prompt"] == ["<|bos|>"]
    assert facts["special_tokens"] == ["<|bos|>", "<|eos|>"]
    assert facts["bytes_without_token"] == [] and facts["warnings"] == []
