"""User reports S08, S22, S24, S26 with every tokenizer at hand.

The others about tokenizers: S09 in test_padded_vocabularies.py, S23 in test_tokenizer_streaming.py,
S25 in test_prompt_tokens.py, S27 in test_chat_templates.py, S28 in test_tokenizer_files.py.
"""

from __future__ import annotations

import warnings

import pytest
from unit.tokenizer_readme import FOLDERS, opened

from kestrel.text.chat_template import encode_chat
from kestrel.text.incremental import IncrementalDecoder
from kestrel.text.stop import StopMatcher

#: Folder -> ids of BOS, as the post-processor adds it, and of EOS, from the models' own configs.
ENDS = {
    "SmolLM2-135M-Instruct": (None, 2),
    "aidreams260K": (1, 2),
    "stories260K": (1, 2),
    "tales-15m": (0, 1),
    "tales-5m": (0, 1),
    "tokenizer-gpt2": (None, 50256),
    "tokenizer-mistral-v0.1": (1, 2),
    "tokenizer-qwen3": (None, 151645),
}
WITH_BOS = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
WITHOUT = "{{ messages[0].content }}"
HELLO = [{"role": "user", "content": "Hello world"}]


@pytest.fixture(params=FOLDERS)
def tokenizer(request, shared_models):
    return opened(shared_models / request.param)


def ends(tokenizer) -> tuple[int | None, int]:
    return ENDS[tokenizer.folder.name]


def test_s08_the_end_token_is_known_by_its_id(tokenizer):
    assert list(tokenizer.eos_ids) == [ends(tokenizer)[1]]
    # Its text is left out, so that it could not be matched.
    assert tokenizer.decode(list(tokenizer.eos_ids)) == ""


def test_s22_one_bos_two_or_none(tokenizer):
    bos, eos = ends(tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = encode_chat(tokenizer, HELLO, template=WITHOUT)
        assert bos not in plain
        raw = tokenizer.encode("Hello world")
        assert raw == ([] if bos is None else [bos]) + plain
    if bos is None:
        return
    chat = encode_chat(tokenizer, HELLO, template=WITH_BOS)
    assert (chat[0], chat.count(bos), chat[-1]) == (bos, 1, eos)
    with pytest.warns(UserWarning, match="begins with two"):
        assert tokenizer.encode(tokenizer.token(bos) + "Hello world")[:2] == [bos, bos]


@pytest.mark.parametrize("text", ["x", " x", "  x", "\nx", " x y", "x  "])
def test_s24_the_first_space(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    decoder = IncrementalDecoder(tokenizer)
    assert "".join(map(decoder.push, ids)) + decoder.flush() == text
    # As the answer to a prompt that ends before it, each blank is there too.
    prompt = tokenizer.encode("Hello")
    whole = tokenizer.encode("Hello" + text)
    if whole[: len(prompt)] == prompt:
        decoder = IncrementalDecoder(tokenizer, prompt)
        answer = map(decoder.push, whole[len(prompt) :])
        assert "".join(answer) + decoder.flush() == text


def test_s26_no_part_of_a_stop_string_is_given_out(tokenizer):
    decoder, matcher = IncrementalDecoder(tokenizer), StopMatcher(["beta gamma"])
    given, stopped = [], False
    for token_id in tokenizer.encode("alpha beta gamma delta"):
        text, stopped = matcher.push(decoder.push(token_id))
        given.append(text)
        if stopped:
            break
    assert stopped and "".join(given) == "alpha "
