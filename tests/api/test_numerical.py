"""Weights that are not numbers: an error that says so, in time, and leaves the model whole."""

from __future__ import annotations

import numpy as np
import pytest
from api.runs import GREEDY
from api.tiny import write_tiny
from processes import run_python

import kestrel
from kestrel.errors import NumericalError

#: Row 9 of the embedding is broken, so a prompt without token 9 is well.
BAD, GOOD = [1, 2, 9, 3], [1, 2, 8, 3]


def _break(value: float):
    def change(tensors):
        tensors["model.embed_tokens.weight"][9, 5] = value

    return change


@pytest.fixture(scope="module", params=["cpu", "reference"])
def broken(request, tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("broken"), _break(np.nan))
    with kestrel.load(folder, backend=request.param) as model:
        yield model


def test_a_session_survives(broken):
    session = broken.session()
    expected = broken.session().prefill(GOOD).tobytes()
    session.prefill(GOOD[:2])
    with pytest.raises(NumericalError, match="KESTREL_EAGER=1"):
        session.prefill(BAD[2:])
    assert session.tokens == GOOD[:2]
    assert session.prefill(GOOD[2:]).tobytes() == expected


def test_generate_stream_and_score_raise(broken):
    for call in (broken.generate, broken.score, lambda *a: list(broken.stream(*a))):
        arguments = (BAD,) if call == broken.score else (BAD, GREEDY)
        with pytest.raises(NumericalError, match="NaN or infinite"):
            call(*arguments)
    assert broken.pool.available == broken.pool.num_blocks
    assert len(broken.generate(GOOD, GREEDY).ids) == 12


def test_a_bad_request_in_a_batch_ends_alone(broken):
    expected = broken.generate(GOOD, GREEDY).ids
    engine = broken.engine()
    good, bad = engine.add(GOOD, GREEDY), engine.add(BAD, GREEDY)
    events = []
    while engine.has_work:
        events += engine.step()
    assert [e.id for e in events if hasattr(e, "id") and e.request_id == good] == expected
    (end,) = [e for e in events if hasattr(e, "reason") and e.request_id == bad]
    assert end.reason == "error" and isinstance(end.error, NumericalError)


def test_a_trace_shows_where_it_began(broken):
    trace = broken.trace(BAD)
    assert not np.isfinite(trace["model.embed_tokens"][2]).all()
    assert np.isfinite(trace["lm_head"][:2]).all(), "positions before it do not see it"
    assert np.isnan(trace["lm_head"][2:]).all()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    "tensor, stage",
    [
        ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj"),
        ("model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.v_proj"),
        ("model.norm.weight", "model.norm"),
        ("lm_head.weight", "lm_head"),
    ],
)
def test_eager_mode_names_the_first_stage(tmp_path, backend, tensor, stage):
    def change(tensors):
        tensors[tensor].flat[3] = np.inf

    folder = write_tiny(tmp_path / "m", change)
    code = f"""
        import kestrel
        model = kestrel.load({str(folder)!r}, backend={backend!r})
        for call in (model.session().prefill, model.generate, model.score):
            try:
                call([1, 2, 3])
            except kestrel.errors.NumericalError as error:
                print(str(error).split(":")[0])
    """
    assert run_python(code, KESTREL_EAGER="1").stdout.split() == [stage] * 3


def test_eager_mode_changes_no_bit(demo_model):
    code = """
        import hashlib, kestrel
        from api.runs import alone, long_prompt
        model = kestrel.load(threads=1)
        print(hashlib.sha256(b"".join(alone(model, long_prompt(model, 20)))).hexdigest())
    """
    assert run_python(code, KESTREL_EAGER="1").stdout == run_python(code, KESTREL_EAGER="0").stdout


def test_activations_beyond_float16(tmp_path):
    """S40: up_proj and down_proj of one layer times 300, stored in float16; sums are float32."""

    def change(tensors):
        for name in ("up_proj", "down_proj"):
            tensors[f"model.layers.0.mlp.{name}.weight"] *= 300

    folder = write_tiny(tmp_path / "m", change, dtype="F16")
    with kestrel.load(folder, kv_dtype="float16") as model:
        trace = model.trace(GOOD)
        assert np.abs(trace["model.layers.0"]).max() > 65504
        assert np.isfinite(trace["lm_head"]).all()
