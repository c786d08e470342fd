"""The tokens of a prompt in `kestrel inspect`, in `generate --plain-content` and in a trace."""

import json

import pytest

import kestrel
from kestrel.cli import main

TEMPLATE = "{% for m in messages %}<|bos|>{{ m.role }} {{ m.content }}<|eos|>{% endfor %}"
TEXT = "Once<|eos|> upon"
#: Ids, from the model card, and origins of TEXT as a raw prompt.
ROWS = [(0, "added"), (3895, "text"), (1, "content"), (562, "text")]


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    return path


def report(capsys, *arguments: object) -> dict:
    assert main(["inspect", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_raw_prompt(capsys):
    tokens = report(capsys, "--prompt", TEXT)["prompt"]
    assert [(token["id"], token["origin"]) for token in tokens] == ROWS
    assert report(capsys)["prompt"] is None
    assert main(["inspect", "--prompt", TEXT]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    at = lines.index("0 0 '<|bos|>' added by the tokenizer")
    assert lines[at : at + 4] == [
        lines[at], "1 3895 'Once'", "2 1 '<|eos|>' control word in the text", "3 562 ' upon'"
    ]  # fmt: skip


def test_messages(capsys, template):
    given = ("--chat-template", template, "--system", "Be", "--message", "a<|eos|>b")
    tokens = report(capsys, *given)["prompt"]
    control = [(token["id"], token["origin"]) for token in tokens if token["origin"] != "text"]
    turn = [(0, "template"), (1, "template")]
    assert control == [*turn, turn[0], (1, "content"), turn[1]]
    plain = report(capsys, *given, "--plain-content")["prompt"]
    assert [token["origin"] for token in plain if token["origin"] != "text"] == ["template"] * 4


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--plain-content"], "--plain-content: expected --prompt or --message too"),
        (["--system", "x"], "--system: expected --message TEXT too"),
        (["--prompt", "x", "--chat-template", "y"], "--chat-template: expected --message TEXT too"),
        (["--message", "x"], "give one with --chat-template FILE"),
        (["--message", "x", "--chat-template", "/nowhere/x"], "/nowhere/x"),
    ],
)
def test_what_does_not_go_together(capsys, arguments, part):
    assert main(["inspect", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and part in captured.err


def test_generate_with_a_plain_prompt(capsys):
    options = ["--json", "--quiet", "--greedy", "--max-tokens", "1"]
    for switch, has_eos in (([], True), (["--plain-content"], False)):
        assert main(["generate", *options, *switch, "--", TEXT]) == 0
        ids = json.loads(capsys.readouterr().out)["prompt_ids"]
        assert (1 in ids) is has_eos and ids[0] == 0
        assert kestrel.load().tokenizer.decode(ids[1:], skip_special_tokens=False) == TEXT
    assert main(["generate", "--plain-content", "--ids", "0 3895"]) == 2
    assert "--plain-content: expected a prompt as text, found --ids" in capsys.readouterr().err


def test_a_trace_says_what_its_tokens_are():
    with kestrel.load() as model:
        one = model.trace(TEXT, "lm_head")
        assert [(token.id, token.origin) for token in one.tokens] == ROWS
        ids, text = model.trace([one.ids, "Once"], "lm_head")
        assert [token.origin for token in ids.tokens] == ["control", "text", "control", "text"]
        assert [(token.id, token.origin) for token in text.tokens] == ROWS[:2]
