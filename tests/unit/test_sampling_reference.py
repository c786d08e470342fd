"""The transforms against transformers' own LogitsProcessor classes, on random rows."""

import numpy as np
import pytest

from kestrel.sampling import SamplingParams, build, transforms
from kestrel.sampling.history import TokenHistory

pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch")
processors = pytest.importorskip("transformers.generation.logits_process")

VOCAB = 200


def rows(count=40):
    random = np.random.default_rng(11)
    for _ in range(count):
        logits = random.standard_normal(VOCAB) * random.uniform(0.5, 6)
        yield random, logits.astype(np.float32)


def reference(processor, logits, seen=(0,)):
    scores = processor(torch.tensor([list(seen)]), torch.from_numpy(logits[None].copy()))
    return scores[0].numpy()


@pytest.mark.parametrize("penalty", [1.05, 1.3, 2.0, 0.7])
def test_repetition_penalty(penalty):
    for random, logits in rows():
        seen = random.integers(0, VOCAB, 60).tolist()
        expected = reference(processors.RepetitionPenaltyLogitsProcessor(penalty), logits, seen)
        history = TokenHistory(seen[:30])
        for token in seen[30:]:
            history.observe(token)
        found = transforms.penalize(logits, history, penalty, 0.0, 0.0)
        assert np.array_equal(found, expected)  # the same float32 operation: the same bits


def test_bias():
    for random, logits in rows():
        bias = {int(token): float(random.normal()) for token in random.integers(0, VOCAB, 10)}
        processor = processors.SequenceBiasLogitsProcessor({(key,): v for key, v in bias.items()})
        assert np.array_equal(transforms.add_bias(logits, bias), reference(processor, logits))


def distribution(logits, *steps):
    """Our candidates after the steps as a probability per id."""
    c = transforms.top_candidates(logits, VOCAB)
    for step in steps:
        c = step(c)
    probabilities = np.zeros(VOCAB)
    probabilities[c.ids] = c.weights / c.weights.sum()
    return probabilities


def softmax(scores):
    weights = np.exp(scores.astype(np.float64) - scores.max())
    return weights / weights.sum()


def assert_same_distribution(found, scores):
    """Same support; probabilities within the rounding of float32 scores of size 60 at most.

    A score s / T is rounded to float32 once by transformers, an error of 60 * 2**-24 at most, which
    is the relative error of its weight and, doubled, of its probability.
    """
    expected = softmax(scores)
    assert np.array_equal(found > 0, expected > 0)
    assert np.all(np.abs(found - expected) <= 2 * 60 * 2.0**-24 * expected)


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.7])
def test_temperature(temperature):
    for _, logits in rows():
        scores = reference(processors.TemperatureLogitsWarper(temperature), logits)
        found = distribution(logits, lambda c: transforms.scale(c, temperature))
        assert_same_distribution(found, scores)


@pytest.mark.parametrize("k", [1, 2, 50, 199, 200, 1000])
def test_top_k(k):
    for _, logits in rows():
        scores = reference(processors.TopKLogitsWarper(k), logits)
        assert_same_distribution(distribution(logits, lambda c: transforms.top_k(c, k)), scores)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_top_p(p):
    for _, logits in rows():
        scores = reference(processors.TopPLogitsWarper(p), logits)
        assert_same_distribution(distribution(logits, lambda c: transforms.top_p(c, p)), scores)


@pytest.mark.parametrize("p", [0.0, 0.01, 0.1, 0.5, 1.0])
def test_min_p(p):
    for _, logits in rows():
        scores = reference(processors.MinPLogitsWarper(p), logits)
        assert_same_distribution(distribution(logits, lambda c: transforms.min_p(c, p)), scores)


def test_all_together_in_the_order_of_generate():
    """The processors that ``generate`` itself builds for these options, in its order."""
    from transformers import GenerationConfig, GenerationMixin

    options = dict(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, repetition_penalty=1.2)
    config = GenerationConfig(do_sample=True, sequence_bias=[[[5], 2.0], [[9], -3.0]], **options)

    class Host(GenerationMixin):
        class config:
            is_encoder_decoder = False

    chain = Host()._get_logits_processor(config, input_ids_seq_length=3)
    assert [type(step).__name__ for step in chain] == [
        "SequenceBiasLogitsProcessor",
        "RepetitionPenaltyLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
        "TopPLogitsWarper",
        "MinPLogitsWarper",
    ]
    params = SamplingParams(
        **options, logit_bias={5: 2.0, 9: -3.0}, logprobs=VOCAB, logprobs_after_sampling=True
    )
    sampler = build(params, vocab_size=VOCAB)
    for random, logits in rows():
        seen = random.integers(0, VOCAB, 60).tolist() + [5, 9]
        scores = reference(chain, logits, seen)
        sampled = sampler.sample(logits, 0.5, sampler.new_history(seen))
        found = np.zeros(VOCAB)
        for token, logprob in sampled.top:
            found[token] = np.exp(logprob)
        assert_same_distribution(found, scores)
