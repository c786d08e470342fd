"""Chat templates against transformers: the committed strings and ids, and live (S22, S25, S27)."""

import hashlib
import json

import pytest
from golden import make_chat_golden
from golden.chat_cases import CASES, DATA, NAMED_TOKENS, OWN_TEMPLATES, REAL_TOKENIZERS

from kestrel.errors import RequestError
from kestrel.text.chat_template import choose_template, encode_chat, explain_chat, render
from kestrel.text.prompt_tokens import Origin
from kestrel.tokenizer import Tokenizer

NAMES = OWN_TEMPLATES + REAL_TOKENIZERS
REFUSED = "the chat template refused the messages: "


def golden(name: str) -> dict:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))



@pytest.fixture(scope="module")
def tokenizers(request):
    """Opens each real tokenizer once."""
    opened = {}

    def open_tokenizer(name: str) -> Tokenizer:
        if name not in opened:
            folder = request.getfixturevalue("shared_models") / name
            opened[name] = Tokenizer.from_folder(folder)
        return opened[name]

    return open_tokenizer


@pytest.fixture(scope="module")
def source(tokenizers):
    """The template of a name, and the tokens that it may write by name."""

    def source_of(name: str) -> tuple[str, dict[str, str]]:
        if name in OWN_TEMPLATES:
            return (DATA / f"{name}.jinja").read_text(encoding="utf-8"), NAMED_TOKENS
        tokenizer = tokenizers(name)
        return choose_template(tokenizer), tokenizer.named_tokens

    return source_of


@pytest.mark.parametrize("name", NAMES)
def test_texts_and_refusals(source, name):
    template, named = source(name)
    expected = golden(name)
    assert hashlib.sha256(template.encode("utf-8")).hexdigest() == expected["template_sha256"]
    assert list(expected["cases"]) == [case.name for case in CASES]
    for case in CASES:
        for header, text in zip((False, True), expected["cases"][case.name]["texts"]):
            options = {"add_generation_prompt": header, **named, **case.options}
            if isinstance(text, str):
                assert render(template, case.messages, **options) == text, case.name
                continue
            with pytest.raises(RequestError) as caught:
                render(template, case.messages, **options)
            assert str(caught.value) == REFUSED + text["error"], case.name


@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_ids(tokenizers, name):
    tokenizer = tokenizers(name)
    for case in CASES:
        expected = golden(name)["cases"][case.name]
        if "ids" not in expected:
            continue
        assert encode_chat(tokenizer, case.messages, **case.options) == expected["ids"], case.name
        plain = encode_chat(tokenizer, case.messages, plain_content=True, **case.options)
        assert plain == expected["plain_ids"], case.name
        for plain_content, ids in ((False, expected["ids"]), (True, expected["plain_ids"])):
            tokens = explain_chat(
                tokenizer, case.messages, plain_content=plain_content, **case.options
            )
            assert [token.id for token in tokens] == ids, case.name
            from_content = any(token.origin is Origin.CONTENT for token in tokens)
            assert from_content is (case.name == "control words" and not plain_content), case.name


def test_the_cases_reach_what_they_are_for():
    """Refusals in the templates' own words, and controls that plain content takes out."""
    refusals = {
        outcome["error"]
        for name in OWN_TEMPLATES
        for case in golden(name)["cases"].values()
        for outcome in case["texts"]
        if isinstance(outcome, dict)
    }
    assert "System role not supported" in refusals
    assert "This model only supports single tool-calls at once!" in refusals
    assert any("roles must alternate" in refusal for refusal in refusals)
    for name in REAL_TOKENIZERS:
        words = golden(name)["cases"]["control words"]
        assert words["ids"] != words["plain_ids"]
        assert golden(name)["cases"]["single turn"]["ids"] == (
            golden(name)["cases"]["single turn"]["plain_ids"]
        )


@pytest.mark.reference
@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_what_transformers_gives_now(request, name):
    pytest.importorskip("transformers")
    if name in OWN_TEMPLATES:
        live = make_chat_golden.live(make_chat_golden.own_template(name), False)
    else:
        folder = request.getfixturevalue("shared_models") / name
        live = make_chat_golden.live(make_chat_golden.real(folder), True)
    assert live == golden(name)
