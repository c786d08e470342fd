"""trace: what the stages compute is what the untraced model computes."""

from __future__ import annotations

import pytest
from api.runs import long_prompt
from api.tiny import write_tiny

import kestrel
from kestrel import Limits
from kestrel.errors import RequestError


@pytest.fixture(scope="module", params=["cpu", "reference"])
def tiny(request, tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("tiny"))
    options = {"threads": 1} if request.param == "cpu" else {}
    with kestrel.load(folder, backend=request.param, **options) as model:
        yield model


IDS = [(7 * n) % 64 for n in range(37)]


def same(a, b) -> bool:
    return list(a) == list(b) and all(a[stage].tobytes() == b[stage].tobytes() for stage in a)


def test_lm_head_is_what_the_session_gives(model):
    ids = long_prompt(model, 40)
    logits = model.trace(ids, "lm_head")["lm_head"]
    assert logits.shape == (40, 4096)
    session = model.session()
    for row, token in zip(logits, ids):
        assert row.tobytes() == session.decode(token).tobytes()


@pytest.mark.parametrize("chunk", [1, 7, 16, 36, 37, 100])
def test_chunks_change_no_bit(tiny, chunk):
    assert same(tiny.trace(IDS, chunk=chunk), tiny.trace(IDS))


def test_a_batch_is_each_alone(tiny):
    prompts = [IDS[:3], IDS[5:35], IDS, [9]]
    together = tiny.trace(prompts)
    assert [trace.ids for trace in together] == prompts
    for ids, trace in zip(prompts, together):
        if tiny.backend.info.name == "cpu":
            assert same(trace, tiny.trace(ids))
        assert all(len(values) == len(ids) for values in trace.values())
    with_chunk = tiny.trace(prompts, chunk=5)
    if tiny.backend.info.name == "cpu":
        assert all(map(same, with_chunk, together))


def test_more_prompts_than_fit_a_step(tmp_path):
    folder = write_tiny(tmp_path)
    with kestrel.load(folder, threads=1) as model:
        expected = [model.trace([n, n + 1, n + 2], "lm_head") for n in range(5)]
    with kestrel.load(folder, threads=1, limits=Limits(max_tokens=4, max_seqs=2)) as model:
        found = model.trace([[n, n + 1, n + 2] for n in range(5)], "lm_head")
    assert all(map(same, found, expected))


def test_patterns(tiny):
    everything = tiny.trace(IDS)
    assert len(everything) == 2 * 15 + 6, sorted(everything)
    assert everything["model.layers.1.self_attn.k_rope"].shape == (37, 16)
    some = tiny.trace(IDS, ["model.layers.*.mlp.*", "model.norm"])
    assert set(some) == {
        *(f"model.layers.{i}.mlp.{part}" for i in (0, 1)
          for part in ("gate_proj", "up_proj", "swiglu", "down_proj")),
        "model.norm",
    }  # fmt: skip
    for stage, values in some.items():
        assert values.tobytes() == everything[stage].tobytes()


def test_the_normal_program_has_no_tap(tiny):
    tiny.trace(IDS)
    assert not tiny.program.taps
    assert "copy" not in {command.operation for command in tiny.program.commands}


def test_what_cannot_be_traced(model):
    for stages in ("nothing", ["nothing", "else"], []):
        with pytest.raises(RequestError, match="no stage matches"):
            model.trace("Once", stages)
    for chunk in (0, -1, 2.0, "3"):
        with pytest.raises(RequestError, match="chunk: expected an integer of at least 1"):
            model.trace("Once", chunk=chunk)
    with pytest.raises(RequestError, match="no token ids"):
        model.trace([[]])
    with pytest.raises(RequestError, match="token id 4096"):
        model.trace([[1], [4096]])
    with pytest.raises(RequestError, match="1025 tokens"):
        model.trace(long_prompt(model, 1025), "model.norm")
