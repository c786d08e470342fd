"""generate: options per prompt, stop strings, limits, sampling through the whole engine."""

from __future__ import annotations

import math

import numpy as np
import pytest
from api.runs import GREEDY, long_prompt
from api.tiny import write_tiny

import kestrel
from kestrel import Limits, SamplingParams
from kestrel.errors import RequestError

PROMPT = "The king said to his daughter"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A context of 64 positions, weights in which no token ends an answer."""
    folder = write_tiny(tmp_path_factory.mktemp("narrow"), max_position_embeddings=64)
    with kestrel.load(folder, threads=1) as model:
        yield model


def test_one_prompt_or_many(model):
    one = model.generate(PROMPT, GREEDY)
    assert [answer.ids for answer in model.generate([PROMPT], GREEDY)] == [one.ids]
    ids = one.prompt_ids
    for prompt in (ids, tuple(ids), np.array(ids), np.array(ids, np.int32)):
        assert model.generate(prompt, GREEDY).ids == one.ids
    for prompts in ([ids], [PROMPT, ids], (np.array(ids), PROMPT)):
        answers = model.generate(prompts, GREEDY)
        assert [answer.ids for answer in answers] == [one.ids] * len(prompts)


@pytest.mark.parametrize(
    "prompt", [[], (), None, 5, 1.5, {"a": 1}, b"bytes", [1.5], ["a", 3], [[]]]
)
def test_prompts_of_another_kind(model, prompt):
    with pytest.raises(RequestError, match="prompt"):
        model.generate(prompt, GREEDY)


def test_more_prompts_than_run_at_once(loaded):
    prompts = [f"{PROMPT} {n}" for n in range(5)]
    expected = [loaded.generate(prompt, GREEDY).ids for prompt in prompts]
    with kestrel.load(threads=1, limits=Limits(max_seqs=2, max_tokens=8)) as model:
        assert [answer.ids for answer in model.generate(prompts, GREEDY)] == expected


def test_options_for_each_prompt(model):
    options = [
        GREEDY,
        SamplingParams(temperature=0.8, seed=7, max_tokens=5, ignore_eos=True),
        SamplingParams(temperature=0.0, max_tokens=2, logprobs=1),
    ]
    prompts = [PROMPT, "Once upon a time", PROMPT]
    alone = [model.generate(prompt, each) for prompt, each in zip(prompts, options)]
    answers = model.generate(prompts, options)
    assert [answer.ids for answer in answers] == [answer.ids for answer in alone]
    assert [len(answer.ids) for answer in answers] == [12, 5, 2]
    assert [answer.seed for answer in answers] == [None, 7, None]
    assert [answer.logprobs is None for answer in answers] == [True, True, False]


@pytest.mark.parametrize("params", [{"temperature": 0.5}, 0.5, "greedy", [{"temperature": 0.5}]])
def test_options_of_another_type(model, params):
    with pytest.raises(RequestError, match="params: expected SamplingParams, found"):
        model.generate(PROMPT, params)


def test_as_many_options_as_prompts(model):
    with pytest.raises(RequestError, match="one for each of 3, found 2"):
        model.generate([PROMPT] * 3, [GREEDY] * 2)


def test_defaults_are_those_of_the_checkpoint(model):
    defaults = model.defaults.replace(max_tokens=8, seed=3)
    assert (defaults.temperature, defaults.top_p, defaults.repetition_penalty) == (0.7, 0.9, 1.05)
    drawn = model.generate(PROMPT, defaults).ids
    assert model.generate(PROMPT, defaults).ids == drawn
    assert model.generate(PROMPT, GREEDY).ids[:8] != drawn


def test_a_drawn_seed_is_reported_and_repeats_the_answer(model):
    params = SamplingParams(temperature=0.9, max_tokens=8)
    first = model.generate(PROMPT, params)
    assert isinstance(first.seed, int)
    assert model.generate(PROMPT, params.replace(seed=first.seed)).ids == first.ids
    assert model.generate(PROMPT, params).seed != first.seed


def test_usage(model):
    answer = model.generate(long_prompt(model, 40), GREEDY)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (40, 12, 0)
    assert usage.prefill_seconds > 0 and usage.decode_seconds > 0
    assert model.generate(long_prompt(model, 40), GREEDY).usage.cached_tokens == 32


def test_the_context_ends_the_answer(narrow):
    """S34: context 64, prompt 60, max_tokens 100."""
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    answer = narrow.generate(list(range(60)), params)
    assert answer.reason == "length" and len(answer.ids) == 4
    assert "context limit of 64" in answer.note


@pytest.mark.parametrize("length", [64, 65])
def test_a_prompt_that_does_not_fit(narrow, length):
    """S35: both numbers, nothing is cut; 63 tokens leave room for one more."""
    ids = [n % 64 for n in range(length)]
    for call in (narrow.generate, narrow.stream):
        with pytest.raises(RequestError) as refusal:
            call(ids, GREEDY)
        assert str(length) in str(refusal.value) and "64" in str(refusal.value)
    assert len(narrow.generate(ids[:63], GREEDY).ids) == 1


def test_ids_without_text_are_never_drawn(tmp_path):
    """S09: 288 logits, 271 texts; the weights make the others by far the most likely."""

    def favour_the_last(tensors):
        tensors["lm_head.weight"][271:] *= 50

    folder = write_tiny(tmp_path / "m", favour_the_last, texts=271, vocab_size=288)
    with kestrel.load(folder, threads=1) as model:
        logits = model.session().prefill([0, 287, 271])
        assert int(logits.argmax()) >= 271
        for params in (
            SamplingParams(temperature=0.0, max_tokens=30),
            SamplingParams(temperature=2.0, seed=1, max_tokens=30),
            SamplingParams(temperature=1.0, seed=2, top_k=5, max_tokens=30, logprobs=2),
            SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=30),
        ):
            answer = model.generate([0, 287, 271], params)
            assert len(answer.ids) == 30 and max(answer.ids) < 271
        for call in (model.generate, model.score, model.trace, model.session().prefill):
            with pytest.raises(RequestError, match="token id 288 at position 1: expected 0 to 287"):
                call([0, 288])


def test_stop_strings(model):
    """S26: no part of the stop string is given out, streamed or not, wherever tokens end."""
    plain = model.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=40))
    for stop in ("old man", "man.", 'd man."\n', plain.text[5:9], plain.text[-3:]):
        params = SamplingParams(temperature=0.0, max_tokens=40, stop=(stop, "never written"))
        answer = model.generate(PROMPT, params)
        assert answer.text == plain.text[: plain.text.index(stop)]
        assert answer.reason == "stop" and "stop string" in answer.note
        assert answer.ids == plain.ids[: len(answer.ids)]
        pieces = [event.text for event in model.stream(PROMPT, params) if hasattr(event, "text")]
        assert "".join(pieces) == answer.text


def test_a_stop_string_that_the_last_allowed_token_completes(model):
    plain = model.generate(PROMPT, GREEDY)
    stop = plain.text[-4:]
    answer = model.generate(PROMPT, GREEDY.replace(stop=(stop,)))
    assert plain.text.index(stop) == len(plain.text) - 4 and answer.ids == plain.ids
    assert (answer.text, answer.reason) == (plain.text[:-4], "stop")


def test_a_stop_string_that_is_only_begun_is_given_out_at_the_end(model):
    plain = model.generate(PROMPT, GREEDY)
    answer = model.generate(PROMPT, GREEDY.replace(stop=(plain.text[-4:] + "x",)))
    assert (answer.text, answer.reason) == (plain.text, "length")


def test_stop_ids(model):
    plain = model.generate(PROMPT, GREEDY)
    end = plain.ids[5]
    answer = model.generate(PROMPT, GREEDY.replace(stop_token_ids=(end,)))
    place = plain.ids.index(end)
    assert answer.ids == plain.ids[: place + 1] and answer.reason == "stop"
    assert answer.text == model.tokenizer.decode(plain.ids[:place])


def test_end_tokens_and_ignore_eos(model):
    """S08: <|eos|> is id 1; a bias makes the model write it at once."""
    params = SamplingParams(temperature=0.0, max_tokens=6, logit_bias={1: 1e4})
    answer = model.generate(PROMPT, params)
    assert (answer.ids, answer.text, answer.reason) == ([1], "", "stop")
    answer = model.generate(PROMPT, params.replace(ignore_eos=True))
    assert (answer.ids, answer.text, answer.reason) == ([1] * 6, "", "length")


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_temperature_0_is_greedy(model, temperature):
    """S29."""
    params = SamplingParams(temperature=temperature, max_tokens=12, seed=5)
    assert model.generate(PROMPT, params).ids == model.generate(PROMPT, GREEDY).ids


def test_top_k_at_the_edges(model):
    """S30: 1 is greedy; the vocabulary and more are the whole distribution."""
    base = SamplingParams(temperature=1.0, seed=9, max_tokens=10)
    off = model.generate(PROMPT, base).ids
    for top_k in (4096, 4097, 10**6):
        assert model.generate(PROMPT, base.replace(top_k=top_k)).ids == off
    greedy = model.generate(PROMPT, GREEDY).ids
    assert model.generate(PROMPT, base.replace(top_k=1)).ids == greedy[:10]
    assert model.generate(PROMPT, base.replace(min_p=1.0)).ids == greedy[:10]
    assert model.generate(PROMPT, base.replace(top_p=0.0)).ids == greedy[:10]


def test_penalties_count_prompt_and_answer(model):
    """S31: with a crushing penalty no token of prompt or answer comes again."""
    params = GREEDY.replace(max_tokens=30, ignore_eos=True)
    answer = model.generate(PROMPT, params.replace(repetition_penalty=1e6))
    assert len({*answer.ids, *answer.prompt_ids}) == len(answer.ids) + len(answer.prompt_ids)
    answer = model.generate(PROMPT, params.replace(presence_penalty=1e6))
    assert len(set(answer.ids)) == 30, "presence counts the answer alone, once"


def test_logprobs(model):
    """S33: raw by default, in float64 against the session's logits; after the sampler by option.

    A sum of 4096 terms loses at most 4096 * 2**-53 = 4.5e-13, the logarithm next to nothing.
    """
    params = SamplingParams(temperature=0.5, top_k=2, seed=1, max_tokens=6, logprobs=2)
    raw = model.generate(PROMPT, params)
    after = model.generate(PROMPT, params.replace(logprobs_after_sampling=True))
    assert raw.ids == after.ids
    session = model.session()
    logits = session.prefill(raw.prompt_ids)
    for place, token in enumerate(raw.ids):
        wide = logits.astype(np.float64)
        norm = wide.max() + math.log(np.exp(wide - wide.max()).sum())
        assert abs(raw.logprobs[place] - (wide[token] - norm)) < 1e-12
        best = int(wide.argmax()), pytest.approx(wide.max() - norm, abs=1e-12)
        assert raw.top_logprobs[place][0] == best
        pair = np.sort(wide)[-2:] / 0.5
        norm = pair.max() + math.log(np.exp(pair - pair.max()).sum())
        assert abs(after.logprobs[place] - (wide[token] / 0.5 - norm)) < 1e-12
        logits = session.decode(token)


def test_one_request_that_cannot_draw_does_not_take_the_others_along(model):
    """The engine ends it alone; generate, which has one answer to give, raises."""
    ban_all = {token: -math.inf for token in range(model.config.vocab_size)}
    hopeless = SamplingParams(temperature=0.0, max_tokens=4, logit_bias=ban_all)
    with pytest.raises(RequestError, match="at least one token"):
        model.generate([PROMPT, "Once"], [GREEDY, hopeless])
    engine = model.engine()
    good, bad = engine.add(model.encode(PROMPT), GREEDY), engine.add([1, 2], hopeless)
    events = []
    while engine.has_work:
        events += engine.step()
    ids = [event.id for event in events if hasattr(event, "id") and event.request_id == good]
    assert ids == model.generate(PROMPT, GREEDY).ids
    ends = {event.request_id: event for event in events if hasattr(event, "reason")}
    assert ends[good].reason == "length" and ends[good].error is None
    assert ends[bad].reason == "error" and isinstance(ends[bad].error, RequestError)
    assert ends[bad].note == str(ends[bad].error)


@pytest.mark.parametrize("option", [{"stop_token_ids": (4096,)}, {"logit_bias": {4096: 1.0}}])
def test_option_ids_outside_the_vocabulary(model, option):
    """S53."""
    with pytest.raises(RequestError, match="0 to 4095"):
        model.generate(PROMPT, GREEDY.replace(**option))


def test_options_change_the_defaults_of_the_checkpoint(model):
    changed = model.defaults.replace(max_tokens=6, seed=3)
    assert model.generate("Once", max_tokens=6, seed=3).ids == model.generate("Once", changed).ids
    *_, finished = model.stream("Once", max_tokens=6, seed=3)
    assert finished.usage.completion_tokens == 6


def test_options_are_refused_when_unknown_or_beside_params(model):
    with pytest.raises(RequestError, match="'max_token' does not exist: did you mean 'max_tokens'"):
        model.generate("Once", max_token=6)
    with pytest.raises(RequestError, match="top_k: given beside params"):
        model.generate("Once", model.defaults, top_k=3)
