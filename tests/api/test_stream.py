"""stream: events as they come, and blocks given back however it ends."""

from __future__ import annotations

import gc

import pytest
from api.runs import GREEDY

from kestrel import SamplingParams
from kestrel.engine.request import Finished, Token
from kestrel.errors import RequestError

PROMPT = "The king said to his daughter"
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def held(model) -> int:
    return model.pool.num_blocks - model.pool.available


def test_events(model):
    answer = model.generate(PROMPT, GREEDY)
    *tokens, end = model.stream(PROMPT, GREEDY)
    assert all(isinstance(token, Token) for token in tokens) and isinstance(end, Finished)
    assert [token.id for token in tokens] == answer.ids
    assert "".join(token.text for token in tokens) == answer.text
    assert end.reason == "length" and end.error is None
    assert end.usage.completion_tokens == GREEDY.max_tokens
    assert end.usage.prompt_tokens == len(answer.prompt_ids)


def test_each_token_comes_with_its_own_step(model):
    before = model.runner.step_count
    for place, event in enumerate(model.stream(PROMPT, GREEDY)):
        if isinstance(event, Token):
            assert model.runner.step_count == before + place + 1


def test_a_character_of_several_tokens_is_never_split(model):
    """S23: the bytes of a smiley forced token by token; nothing is given out before the last."""
    smile = model.tokenizer.encode("🙂", add_special_tokens=False)
    assert len(smile) == 4
    for length in (4, 3):
        pieces, prompt = [], model.encode("Once ")
        for token in smile[:length]:
            force = SamplingParams(temperature=0.0, max_tokens=1, logit_bias={token: 1e6})
            pieces.append(model.generate(prompt, force).ids)
            prompt.append(token)
        assert pieces == [[token] for token in smile[:length]]
    # In one answer: penalties drop what was written, so the bias picks the bytes one after another.
    bias = {token: 1e6 - 1e5 * place for place, token in enumerate(smile)}
    params = SamplingParams(
        temperature=0.0, max_tokens=4, logit_bias=bias, presence_penalty=1e7
    )
    tokens = [event for event in model.stream("Once ", params) if isinstance(event, Token)]
    assert [token.id for token in tokens] == smile
    assert [token.text for token in tokens] == ["", "", "", "🙂"]
    cut = model.generate("Once ", params.replace(max_tokens=3))
    assert cut.text == "\ufffd", "the answer ended inside a character, and says so"


def test_the_prompt_is_checked_at_once(model):
    with pytest.raises(RequestError, match="no tokens"):
        model.stream([], GREEDY)
    with pytest.raises(RequestError, match="token id 5000"):
        model.stream([5000], GREEDY)
    with pytest.raises(RequestError, match="expected SamplingParams"):
        model.stream(PROMPT, {"temperature": 0})
    with pytest.raises(RequestError, match="one for each of 1, found 2"):
        model.stream(PROMPT, [GREEDY, GREEDY])


def test_closing_early_gives_the_blocks_back(model):
    stream = model.stream(PROMPT, ENDLESS)
    for _ in range(20):
        next(stream)
    assert held(model) == 2
    stream.close()
    assert held(model) == 0
    assert list(stream) == []


def test_leaving_a_loop_gives_the_blocks_back(model):
    for event in model.stream(PROMPT, ENDLESS):
        break
    del event
    gc.collect()
    assert held(model) == 0


def test_a_stream_that_was_never_read_holds_nothing(model):
    stream = model.stream(PROMPT, ENDLESS)
    assert held(model) == 0
    stream.close()


def test_cancel(model):
    engine = model.engine()
    first, second = (engine.add(model.encode(PROMPT), ENDLESS) for _ in range(2))
    for _ in range(3):
        engine.step()
    assert engine.cancel(first) and not engine.cancel(99)
    events = engine.step()
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert (end.request_id, str(end.reason)) == (first, "cancelled")
    assert [event.request_id for event in events if isinstance(event, Token)] == [second]
    assert not engine.cancel(first), "it has ended"
    assert engine.has_work
    engine.close()
    assert not engine.has_work and held(model) == 0


def test_cancel_before_the_first_step(model):
    engine = model.engine()
    engine.cancel(engine.add(model.encode(PROMPT), ENDLESS))
    (end,) = engine.events()
    assert (str(end.reason), end.usage.completion_tokens) == ("cancelled", 0)


def test_an_exception_in_the_reader_ends_the_stream(model):
    with pytest.raises(ZeroDivisionError):
        for _ in model.stream(PROMPT, ENDLESS):
            1 / 0  # noqa: B018
    gc.collect()
    assert held(model) == 0
    assert model.generate(PROMPT, GREEDY).ids == model.generate(PROMPT, GREEDY).ids
