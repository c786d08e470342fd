"""Faults of tokenizer.json that are found when it is read, and named with the file."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from kestrel.checkpoint.strict_json import MAX_JSON_BYTES
from kestrel.errors import TokenizerError
from kestrel.model import DEMO_MODEL
from kestrel.tokenizer import Tokenizer

TEXT = "Once upon a time there was a little kestrel who counted clouds."


@pytest.fixture
def folder(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(DEMO_MODEL / name, tmp_path / name)
    return tmp_path


def change(folder, edit) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    edit(content["model"])
    path.write_text(json.dumps(content))


def test_dropout_is_switched_off_with_a_note(folder):
    expected = Tokenizer.from_folder(folder).encode(TEXT)
    change(folder, lambda model: model.update(dropout=0.5))
    tokenizer = Tokenizer.from_folder(folder)
    assert [tokenizer.encode(TEXT) for _ in range(20)] == [expected] * 20
    assert any("tokenizer.json: model.dropout 0.5 is not followed" in w for w in tokenizer.warnings)


@pytest.mark.parametrize("dropout", [None, 0.0])
def test_no_dropout_needs_no_note(folder, dropout):
    change(folder, lambda model: model.update(dropout=dropout))
    assert not any("dropout" in warning for warning in Tokenizer.from_folder(folder).warnings)


@pytest.mark.parametrize("before", ['"model"', '"vocab"'])
def test_a_key_that_stands_twice(folder, before):
    path = folder / "tokenizer.json"
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, f"{before}: {{}}, {before}"))
    key = before.strip('"')
    with pytest.raises(TokenizerError, match=f"tokenizer.json: .*the key '{key}' stands twice"):
        Tokenizer.from_folder(folder)


def test_an_id_that_two_tokens_have(folder):
    def edit(model):
        first = next(iter(model["vocab"]))
        model["vocab"]["another"] = model["vocab"][first]

    change(folder, edit)
    with pytest.raises(TokenizerError, match="tokenizer.json: model.vocab: .* and 'another'"):
        Tokenizer.from_folder(folder)


def test_ids_that_the_model_lacks():
    tokenizer = Tokenizer.from_folder(DEMO_MODEL)
    size = tokenizer.vocab_size
    assert tokenizer.notes_for(size) == []
    (note,) = tokenizer.notes_for(size - 2)
    assert "tokenizer.json: 2 of its tokens" in note and f"from {size - 2} " in note


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_files_that_are_too_large_or_no_files(folder, name):
    path = folder / name
    path.unlink(missing_ok=True)
    with open(path, "wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)  # a hole: it takes no room
    with pytest.raises(TokenizerError, match=f"{name}: 100,000,001 bytes: expected at most"):
        Tokenizer.from_folder(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(TokenizerError, match=f"{name}: expected a file, found a device or pipe"):
        Tokenizer.from_folder(folder)
