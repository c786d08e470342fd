"""Where a model's chat template comes from: by hand, and as transformers decides it."""

import json
import shutil

import pytest

from kestrel.errors import RequestError, TokenizerError
from kestrel.text.chat_template import choose_template
from kestrel.tokenizer import Tokenizer

NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {}}}]

#: (chat_template of tokenizer_config.json, files beside it, templates by name)
SOURCES = {
    "text": ("C", {}, {"default": "C"}),
    "empty text": ("", {}, {"default": ""}),
    "list": (NAMED, {}, {"default": "D", "tool_use": "T"}),
    "list without a default": (NAMED[1:], {}, {"tool_use": "T"}),
    "object": ({"default": "D", "rag": "R"}, {}, {"default": "D", "rag": "R"}),
    "object of two odd names": ({"name": "N", "template": "T"}, {}, {"name": "N", "template": "T"}),
    "file": (None, {"chat_template.jinja": "F"}, {"default": "F"}),
    "file before text": ("C", {"chat_template.jinja": "F"}, {"default": "F"}),
    "file before list": (NAMED, {"chat_template.jinja": "F"}, {"default": "F"}),
    "files": (
        "C",
        {"chat_template.jinja": "F", "additional_chat_templates/tool_use.jinja": "T"},
        {"default": "F", "tool_use": "T"},
    ),
    "another file alone": (
        "C", {"additional_chat_templates/rag.jinja": "R\n"}, {"rag": "R\n"}
    ),
}  # fmt: skip


@pytest.fixture(params=SOURCES)
def folder(request, tmp_path, demo_model):
    config, files, _ = SOURCES[request.param]
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    return tmp_path


def test_which_templates_there_are(folder, request):
    _, _, expected = SOURCES[request.node.callspec.params["folder"]]
    assert Tokenizer.from_folder(folder).chat_templates == expected


@pytest.mark.reference
def test_transformers_chooses_the_same(folder):
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.from_folder(folder)
    for tools in (None, TOOLS):
        try:
            expected = theirs.get_chat_template(tools=tools)
        except ValueError:
            with pytest.raises(RequestError, match="expected one of the chat templates"):
                choose_template(ours, tools=tools is not None)
        else:
            assert choose_template(ours, tools=tools is not None) == expected


def test_choosing_by_name(demo_model, tmp_path):
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    with pytest.raises(RequestError, match="give one with --chat-template FILE") as caught:
        choose_template(Tokenizer.from_folder(tmp_path))
    for part in (str(tmp_path), "chat_template.jinja", "tokenizer_config.json", "kestrel --model"):
        assert part in str(caught.value)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": NAMED}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert choose_template(tokenizer, "tool_use") == "T"
    with pytest.raises(RequestError, match="chat templates default, tool_use, found 'x'"):
        choose_template(tokenizer, "x")


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
)
def test_an_empty_file_is_no_template(demo_model, tmp_path, name):
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(TokenizerError, match=f"{name}: an empty file: download"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    "value", [5, True, ["D"], [{"name": "a"}], [{"name": 1, "template": "T"}], {"a": 1}]
)
def test_what_is_no_template(demo_model, tmp_path, value):
    shutil.copy(demo_model / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    with pytest.raises(TokenizerError, match="tokenizer_config.json: chat_template: expected a te"):
        Tokenizer.from_folder(tmp_path)
