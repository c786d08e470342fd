"""A Phi-3 past its original length of 20 tokens: its logits follow from its tokens alone.

All are computed anew when it gets there. What the bits must be is what a prompt of the same tokens
gives, run at once over an empty cache; the golden tests hold these to transformers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from api.runs import cold, preempted
from golden.recipes import RECIPES

import kestrel
from kestrel import Limits, SamplingParams, _ops

WIDER = {"vocab_size": 97, "tie_word_embeddings": False}
RECIPE = RECIPES["phi3-longrope-decode-f16"]
RECIPE = replace(RECIPE, dtype="F32", config={**RECIPE.config, **WIDER})
IDS = RECIPE.ids(60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return RECIPE.write(tmp_path_factory.mktemp("restarts") / "model")


@pytest.fixture(scope="module")
def model(folder):
    with kestrel.load(folder, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def at_once(folder):
    """Tokens -> the logits after them as bytes, in one call over an empty cache."""
    with kestrel.load(folder, threads=1) as model:

        def run(ids: list[int]) -> bytes:
            cold(model)
            return model.session().prefill(ids).tobytes()

        yield run


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", _ops.isas())
def test_token_by_token_is_at_once(folder, at_once, isa, threads):
    with kestrel.load(folder, isa=isa, threads=threads) as model:
        session = model.session()
        for end, token in enumerate(IDS[:26], 1):
            assert session.decode(token).tobytes() == at_once(IDS[:end])


@pytest.mark.parametrize("chunk", [1, 7, 16, 20, 21])
@pytest.mark.parametrize("first", [3, 19, 20, 21])
def test_pieces_and_chunks(model, at_once, first, chunk):
    cold(model)
    session = model.session()
    session.prefill(IDS[:first], chunk=chunk)
    assert session.prefill(IDS[first:40], chunk=chunk).tobytes() == at_once(IDS[:40])
    assert session.decode(IDS[40]).tobytes() == at_once(IDS[:41])


def test_cached_prefixes_of_both_sides(model, at_once):
    """Blocks of short and long runs of the same tokens lie side by side in the cache."""
    cold(model)
    for length in (18, 40, 18, 40, 20, 21, 20, 33):
        assert model.session().prefill(IDS[:length]).tobytes() == at_once(IDS[:length])
    session = model.session()
    session.prefill(IDS[:20])
    before = model.runner.step_count
    assert session.prefill(IDS[20:33], chunk=1).tobytes() == at_once(IDS[:33])
    assert model.runner.step_count - before == 1, "two blocks of the long prompt were there"


def test_forks_and_cuts(model, at_once):
    cold(model)
    parent = model.session()
    parent.prefill(IDS[:20])
    child = parent.fork()
    assert parent.decode(7).tobytes() == at_once([*IDS[:20], 7])
    assert child.decode(8).tobytes() == at_once([*IDS[:20], 8])
    late = parent.fork()
    assert late.decode(9).tobytes() == at_once([*IDS[:20], 7, 9])
    for length in (21, 20, 17, 1):
        late.truncate(length)
        tokens = [*late.tokens, 5]
        assert late.decode(5).tobytes() == at_once(tokens)
    assert parent.decode(6).tobytes() == at_once([*IDS[:20], 7, 6])


def test_a_refused_call_leaves_no_trace(folder, at_once):
    with kestrel.load(folder, threads=1, limits=Limits(max_context=32)) as model:
        per_block = model.cache.nbytes // model.cache.num_blocks
    with kestrel.load(
        folder, threads=1, limits=Limits(max_context=32, cache_bytes=2 * per_block)
    ) as model:
        session, other = model.session(), model.session()
        session.prefill(IDS[:14])
        other.prefill(IDS[1:3])
        with pytest.raises(kestrel.errors.CapacityError):
            session.prefill(IDS[14:24])
        assert session.decode(IDS[14]).tobytes() == at_once(IDS[:15])


def test_scores_and_traces_are_of_the_whole(model, at_once):
    """One call: each token by the length of all of them, as the class's forward has it."""
    cold(model)
    for length in (20, 21, 40):
        rows = model.trace(IDS[:length], "lm_head", chunk=6)["lm_head"]
        assert rows[-1].tobytes() == at_once(IDS[:length])
        scores = model.score(IDS[:length])
        wide = rows[:-1].astype(np.float64)
        sums = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
        expected = wide[np.arange(length - 1), IDS[1:length]] - sums
        assert scores == pytest.approx(expected.tolist(), rel=1e-12)


SEEDED = SamplingParams(temperature=0.9, seed=3, max_tokens=30, ignore_eos=True, logprobs=2)
PROMPTS = [IDS[:5], IDS[2:20], IDS[:20], IDS[1:22], IDS[30:33]]


@pytest.fixture(scope="module")
def singles(folder):
    """The answer to each prompt, alone over an empty cache."""
    with kestrel.load(folder, threads=1) as model:
        answers = []
        for ids in PROMPTS:
            cold(model)
            answers.append(model.generate(ids, SEEDED))
    return answers


def test_each_token_of_an_answer_is_the_best_after_those_before_it(folder, at_once):
    with kestrel.load(folder, threads=1) as model:
        answer = model.generate(IDS[:18], temperature=0, max_tokens=8, ignore_eos=True)
    tokens = IDS[:18]
    for token in answer.ids:
        assert token == int(np.frombuffer(at_once(tokens), np.float32).argmax())
        tokens = [*tokens, token]


@pytest.mark.parametrize("max_tokens", [5, 6, 23, 64])
def test_company_and_steps_change_nothing(folder, singles, max_tokens):
    with kestrel.load(folder, limits=Limits(max_tokens, max_seqs=5)) as model:
        for _ in range(2):  # the second time over a warm cache
            for answer, single in zip(model.generate(PROMPTS, SEEDED), singles):
                assert (answer.ids, answer.logprobs) == (single.ids, single.logprobs)


def test_preemption_changes_nothing(folder, singles):
    with kestrel.load(folder, threads=1, limits=Limits(max_context=64)) as model:
        per_block = model.cache.nbytes // model.cache.num_blocks
    limits = Limits(max_context=64, cache_bytes=5 * per_block)
    with kestrel.load(folder, threads=1, limits=limits) as model:
        assert model.pool.num_blocks == 5
        found = preempted(model, PROMPTS, SEEDED)
    for tokens, single in zip(found, singles):
        assert [token.id for token in tokens] == single.ids
        assert [token.logprob for token in tokens] == single.logprobs
