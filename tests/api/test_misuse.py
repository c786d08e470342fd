"""What is no token id, no length and no option is refused, never taken for one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.errors import ConfigError, KestrelError, RequestError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("misuse"))
    with kestrel.load(folder, backend="reference") as model:
        yield model


NOT_IDS = [b"Once", bytearray(b"Once"), memoryview(b"On"), {5: 1, 3: 2}, {5, 3}, [True, False], 7]
NOT_IDS += [None, [1.5], ["a"], np.array([True, False])]


@pytest.mark.parametrize("ids", NOT_IDS, ids=repr)
@pytest.mark.parametrize("call", ["generate", "stream", "score", "trace", "encode"])
def test_prompts_that_are_none(model, call, ids):
    if call in ("generate", "trace") and isinstance(ids, list) and ids == ["a"]:
        pytest.skip("a list of one text is a list of one prompt there")
    with pytest.raises(RequestError, match="prompt: expected"):
        getattr(model, call)(ids)


@pytest.mark.parametrize("ids", [*NOT_IDS, "Once"], ids=repr)
def test_ids_that_are_none(model, ids):
    session, engine = model.session(), model.engine()
    with pytest.raises(RequestError, match="token ids: expected integers"):
        session.prefill(ids)
    with pytest.raises(RequestError, match="expected a list of token ids"):
        engine.add(ids, model.defaults)
    with pytest.raises(RequestError, match="token ids: expected integers"):
        model.tokenizer.decode(ids)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 3])
def test_a_length_that_is_none(model, value):
    session = model.session()
    session.prefill([1, 2])
    with pytest.raises(RequestError, match="truncate: length: expected an integer from 0 to 2"):
        session.truncate(value)
    assert session.tokens == [1, 2]


def test_a_token_that_is_none(model):
    for token in (True, "1", None, 1.0):
        with pytest.raises(RequestError, match="token ids: expected integers"):
            model.session().decode(token)


def test_integers_of_numpy(model):
    session = model.session()
    session.prefill(np.array([1, 2, 3], np.int64), chunk=np.int32(2))
    session.decode(np.uint8(4))
    session.truncate(np.int64(2))
    assert session.tokens == [1, 2] and {type(token) for token in session.tokens} == {int}
    assert model.trace(np.array([1, 2]), chunk=np.int16(1)).ids == [1, 2]


def test_an_engine_that_was_closed(model):
    engine = model.engine()
    request = engine.add([1, 2], model.defaults)
    engine.close()
    for call in (engine.step, lambda: engine.add([1], model.defaults)):
        with pytest.raises(RequestError, match=r"the engine was closed: .*model\.engine\(\)"):
            call()
    assert engine.cancel(request) is False


def test_params_that_are_none(model):
    with pytest.raises(RequestError, match="params: expected SamplingParams, found None"):
        model.engine().add([1], None)


@pytest.mark.parametrize("path", [1.5, [], b"folder", True])
def test_a_path_that_is_none(path):
    with pytest.raises(RequestError, match="load: path: expected the path of a folder, found"):
        kestrel.load(path)


def test_mmap_that_is_no_bool():
    with pytest.raises(RequestError, match="load: mmap: expected True or False, found 'x'"):
        kestrel.load(mmap="x")


@pytest.mark.parametrize("stages", [None, [5], 5, {"a": 1}, b"*"])
def test_stages_that_are_none(model, stages):
    with pytest.raises(RequestError, match="trace: stages: expected a pattern"):
        model.trace([1, 2], stages)


def test_a_stage_that_a_trace_lacks(model):
    trace = model.trace([1, 2], "model.norm")
    with pytest.raises(KeyError, match=r"'model.nrm': no stage of .*near it: model\.norm"):
        trace["model.nrm"]
    assert "model.nrm" not in trace and 5 not in trace and trace.get("x") is None


@pytest.mark.parametrize("eos", [2**31, 10**30, [2, 2**31]])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_end_ids_out_of_range(tmp_path, file, eos):
    folder = write_tiny(tmp_path)
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, "eos_token_id": eos}))
    with pytest.raises(ConfigError, match=f"{file}.*eos_token_id.*found") as refusal:
        kestrel.load(folder, backend="reference")
    assert isinstance(refusal.value, KestrelError) and refusal.value.key == "eos_token_id"
