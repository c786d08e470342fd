"""Limits of the machine: what a pass did, against a count of its own; the roofline by hand."""

from __future__ import annotations

import json

import numpy
import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.errors import BackendError
from kestrel.program.work import Work, step_work
from kestrel.roofline import Floor, MachineLimits, fastest, roofline
from kestrel.runtime import native_ops

ops = native_ops()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("isa", ops.isas())
def test_a_pass_reads_every_word_once_a_round(isa, threads):
    # 1,237 lines: no share is a multiple of the streams.
    data = numpy.random.default_rng(1).integers(0, 256, 1237 * 64, dtype=numpy.uint8)
    seconds, found = ops.limit_read(ops.CpuDevice(threads, isa), data, 3)
    assert seconds > 0
    assert found == 3 * sum(data.view("<u8").tolist()) % 2**64


@pytest.mark.parametrize("isa", ops.isas())
def test_every_thread_does_as_many_multiply_adds(isa):
    _, alone = ops.limit_fma(ops.CpuDevice(1, isa), 1000)
    _, three = ops.limit_fma(ops.CpuDevice(3, isa), 1000)
    # Whole registers of 4 floats at least; 1,000 rounds of each.
    assert alone % 4000 == 0 and three == 3 * alone > 0


def test_what_cannot_be_measured_is_refused():
    device = ops.CpuDevice(1)
    for nbytes, rounds in ((0, 1), (65, 1), (64, 0)):
        with pytest.raises(ValueError, match=f"found {nbytes} bytes and {rounds}"):
            ops.limit_read(device, bytes(nbytes), rounds)
    for rounds in (0, 2**24):
        with pytest.raises(ValueError, match=f"found {rounds}"):
            ops.limit_fma(device, rounds)
    device.close()
    with pytest.raises(BackendError, match="closed"):
        ops.limit_fma(device, 1)
    with pytest.raises(BackendError, match="closed"):
        ops.limit_read(device, bytes(64), 1)


def test_a_limit_is_the_fastest_pass():
    passes = iter([(8.0, 0.5), (8.0, 0.25), (8.0, 2.0), (8.0, 0.01)])
    assert fastest(lambda: next(passes), 3, 0.0) == 32.0
    assert next(passes) == (8.0, 0.01)  # three, and no more
    assert fastest(lambda: next(passes), 0, 0.0) == 0.0


def test_the_best_so_far_stays():
    limits = MachineLimits(ops.CpuDevice(1))
    for measure in (lambda seconds: limits.read(100_000, seconds), limits.arithmetic):
        found = [measure(seconds) for seconds in (0.0, 0.001, 0.0, 0.001)]
        assert found == sorted(found) and found[0] > 0 and found[2] == found[1]


def test_the_roofline_is_the_longer_of_the_two_times():
    assert roofline(8e6, 1e3, 4e6, 1e9) == Floor("bytes", 8e6, 2.0)
    assert roofline(1e3, 8e9, 4e6, 1e9) == Floor("arithmetic", 8e9, 8.0)
    limits = MachineLimits(ops.CpuDevice(1))
    bandwidth, peak = limits.read(64, 0.0), limits.arithmetic(0.0)
    assert limits.floor(1e12, 1, 64) == Floor("bytes", 1e12, 1e12 / bandwidth)
    assert limits.floor(0, 1e9, 64) == Floor("arithmetic", 1e9, 1e9 / peak)
    assert limits.floor(1e9, 0, 64).bound == "bytes"


def test_a_rate_has_the_unit_of_its_limit():
    assert (Floor("bytes", 3e9, 0.1).rate(0.5), Floor("bytes", 3e9, 0.1).unit) == (6.0, "GB/s")
    floor = Floor("arithmetic", 3e9, 0.1)
    assert (floor.rate(floor.seconds), floor.unit) == (30.0, "GFLOP/s")


# -- the work of a step ------------------------------------------------------------------------


def matrices(model):
    """Elements of a layer's matrices, of the head, and of what the last layer's attention is
    followed by (o_proj and the MLP), from config.json."""
    c = json.loads((model.folder / "config.json").read_text())
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    layer, behind = hidden * (2 * q + 2 * kv + 3 * inner), hidden * (q + 3 * inner)
    return c, layer, hidden * c["vocab_size"], behind, q, kv


def test_the_work_of_the_demo_model_by_hand():
    with kestrel.load(backend="null") as model:
        c, layer, head, behind, q, kv = matrices(model)
        layers, weights = c["num_hidden_layers"], 2 * 5_475_584 + 64  # see test_cli_bench.py
        # The token at position 20 sees 21 positions: a multiply-add for each element of its keys
        # and one for each of its values; they are float32 in the cache.
        flops = 2 * (layers * layer + head) + layers * 4 * q * 21
        assert step_work(model.program, 1, 20) == Work(weights + layers * 2 * kv * 4 * 21, flops)
        # Five tokens at positions 0 to 4 see 1 + 2 + 3 + 4 + 5; behind the last attention only
        # the one row goes on whose logits are asked for.
        flops = 2 * (5 * layers * layer - 4 * behind + head) + layers * 4 * q * 15
        assert step_work(model.program, 5) == Work(weights + layers * 2 * kv * 4 * 5, flops)
        without_head = step_work(model.program, 5, logit_rows=0).flops
        assert step_work(model.program, 5).flops - without_head == 2 * (behind + head)
    assert Work(1, 2) + Work(10, 20) == Work(11, 22)


def test_a_window_bounds_what_is_seen_and_read(tmp_path):
    write_tiny(
        tmp_path, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=4,
        attention_bias=None, mlp_bias=None,
    )  # fmt: skip
    with kestrel.load(tmp_path, backend="null", kv_dtype="float16") as model:
        config, _, _, _, q, kv = matrices(model)
        layers = config["num_hidden_layers"]
        near, far = (step_work(model.program, 3, first) for first in (0, 10))
        # 1 + 2 + 3 positions, and 4 for each of three tokens.
        assert far.flops - near.flops == layers * 4 * q * (12 - 6)
        # Positions 0 to 2; then 7 to 12, of two bytes an element.
        assert far.nbytes - near.nbytes == layers * 2 * kv * 2 * (6 - 3)
