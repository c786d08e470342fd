"""Several requests at once: 16 prompt tokens and 32 generated each, batched continuously.

A step reads the weights once for all of them, so tokens per second grow with the batch until
arithmetic is the limit.
"""

from __future__ import annotations

from itertools import count

import pytest
from figures import digest
from models import prompt, step_flops

from kestrel.sampling.params import SamplingParams

PROMPT, GENERATED = 16, 32
PARAMS = SamplingParams(temperature=0.0, max_tokens=GENERATED, ignore_eos=True)
LARGE = pytest.mark.large


@pytest.mark.parametrize(
    "name, dtype, requests",
    [
        ("15M", "BF16", 4),
        pytest.param("15M", "BF16", 16, marks=LARGE),
        pytest.param("135M", "BF16", 4, marks=LARGE),
        pytest.param("135M", "BF16", 16, marks=LARGE),
    ],
)
def test_batch(measure, open_model, work, name, dtype, requests):
    model = open_model(name, dtype)
    config, vocab = model.config, model.config.vocab_size
    common = prompt(PROMPT - 1, vocab)
    first = count()

    def prompts(start: int) -> list[list[int]]:
        # First ids that no run had: nothing of a prompt is found in the cache.
        return [[(start + i) % vocab, *common] for i in range(requests)]

    def result() -> str:
        together = [answer.ids for answer in model.generate(prompts(0), PARAMS)]
        alone = model.generate(prompts(0)[-1], PARAMS).ids
        assert together[-1] == alone, "a request alone gives another answer than in the batch"
        return digest([repr(together)])

    weights, tokens = model.program.weight_bytes(), requests * GENERATED
    flops = step_flops(config, PROMPT) + step_flops(
        config, GENERATED - 1, PROMPT, logit_rows=GENERATED - 1
    )
    measure(
        lambda ids: model.generate(ids, PARAMS),
        setup=lambda: ((prompts(next(first) * requests),), {}),
        result=result,
        count=tokens,
        unit="tokens/s",
        work=work(nbytes=weights * GENERATED, flops=flops * requests, footprint=weights),
        budget=4.0,
        note="prefill included",
    )
