"""Prefill: a prompt in one step. From some rows on, arithmetic is the limit."""

from __future__ import annotations

import pytest
from figures import digest
from models import prompt, step_flops

LARGE = pytest.mark.large
CASES = [
    pytest.param(name, dtype, length, id=f"{name}-{dtype}-{length}", marks=marks)
    for name, dtype, lengths, marks in (
        ("15M", "F32", (16, 128, 512), ()),
        ("15M", "BF16", (16, 128, 512), ()),
        ("tales-15m", "BF16", (16, 128), ()),
        ("135M", "F32", (128,), LARGE),
        ("135M", "BF16", (16, 128, 512), LARGE),
        ("1B", "BF16", (16, 128), LARGE),
        ("1B", "F32", (128,), pytest.mark.large("f32")),
    )
    for length in lengths
]


@pytest.mark.parametrize("name, dtype, length", CASES)
def test_prefill(measure, open_model, work, name, dtype, length):
    model = open_model(name, dtype)
    config, vocab = model.config, model.config.vocab_size
    common = prompt(length - 1, vocab)
    first = iter(range(vocab))

    def fresh_session():
        # A first token that no run had: nothing of the prompt is found in the cache.
        return (model.session(), [next(first), *common]), {}

    alone = open_model(name, dtype, threads=1).session()
    ids = [0, *common]
    expected = digest([alone.prefill(ids, chunk=64)])

    def result() -> str:
        session = model.session()
        found = digest([session.prefill(ids)])
        assert found == expected, "another thread count and other chunks give other logits"
        return found

    measure(
        lambda session, ids: session.prefill(ids),
        setup=fresh_session,
        result=result,
        count=length,
        unit="tokens/s",
        work=work(
            nbytes=model.program.weight_bytes(),
            flops=step_flops(config, length),
        ),
        budget=3.0,
    )
