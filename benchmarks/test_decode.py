"""Decode: one token a step. A step reads every weight once, so memory is the limit."""

from __future__ import annotations

import pytest
from figures import digest
from limits import QUICK
from models import step_flops, prompt

from kestrel.cache.paged_cache import bytes_per_token

STEPS = 32
LARGE = pytest.mark.large
CASES = [
    pytest.param("15M", "F32", 16, id="15M-F32-16"),
    pytest.param("15M", "BF16", 16, id="15M-BF16-16"),
    pytest.param("15M", "F16", 16, id="15M-F16-16"),
    pytest.param("15M", "BF16", 512, id="15M-BF16-512"),
    pytest.param("tales-15m", "BF16", 16, id="tales-15m-BF16-16"),
    pytest.param("135M", "F32", 16, id="135M-F32-16", marks=LARGE),
    pytest.param("135M", "BF16", 16, id="135M-BF16-16"),
    pytest.param("135M", "BF16", 512, id="135M-BF16-512", marks=LARGE),
    pytest.param("1B", "BF16", 16, id="1B-BF16-16", marks=LARGE),
    pytest.param("1B", "F32", 16, id="1B-F32-16", marks=pytest.mark.large("f32")),
]


def hashes(session, ids: list[int], tokens: list[int]) -> list[str]:
    """A hash of the logits after each of ``tokens``, fed one by one behind ``ids``."""
    session.reset()
    session.prefill(ids)
    return [digest([session.decode(token)]) for token in tokens]


@pytest.mark.parametrize("name, dtype, context", CASES)
def test_decode(measure, open_model, work, name, dtype, context):
    model = open_model(name, dtype)
    config, vocab = model.config, model.config.vocab_size
    ids, tokens = prompt(context, vocab), prompt(4 if QUICK else STEPS, vocab, seed=1)
    session = model.session()
    session.prefill(ids)

    def steps() -> None:
        for token in tokens:
            session.decode(token)

    alone = open_model(name, dtype, threads=1).session()
    expected = hashes(alone, ids, tokens[:4])

    def result() -> str:
        found = hashes(session, ids, tokens)
        assert found[:4] == expected, "another thread count gives other logits"
        return digest(found)

    kv_bytes = bytes_per_token(config, model.cache.layer(0).dtype) * (context + len(tokens) / 2)
    nbytes = model.program.weight_bytes() + kv_bytes
    measure(
        steps,
        setup=lambda: session.truncate(context),
        result=result,
        count=len(tokens),
        unit="tokens/s",
        work=work(
            nbytes=nbytes * len(tokens),
            flops=step_flops(config, len(tokens), context, logit_rows=len(tokens)),
            footprint=nbytes,
        ),
        budget=4.0,
    )
