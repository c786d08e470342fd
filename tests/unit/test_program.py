"""The recorder, the printed program and the memory plan."""

import re
from pathlib import Path

import numpy as np
import pytest

from kestrel.checkpoint.safetensors_file import TensorView
from kestrel.dtypes import Dtype
from kestrel.errors import ShapeError
from kestrel.models.weights import Linear
from kestrel.program.plan import ALIGNMENT, plan
from kestrel.program.program import OPERATIONS, Program
from kestrel.program.recorder import Recorder
from kestrel.program.trace import TraceSpec
from kestrel.program.values import Dim, Storage

MAXIMA = {Dim.TOKENS: 8, Dim.SEQUENCES: 2, Dim.LOGIT_ROWS: 2}
ROOT = Path(__file__).parents[2]


def weight(name, *shape):
    array = np.zeros(shape, dtype=np.float32)
    return TensorView(name, Dtype.F32, shape, memoryview(array).cast("B"), Path("none"), 0)


def record(trace=None) -> Program:
    """A small network with a residual: norm, two products that share x, swiglu, product."""
    r = Recorder(MAXIMA, 4, trace)
    x = r.embed(r.inputs.token_ids, weight("E", 10, 6), 1.0, "embed")
    with r.stage("layer"):
        h = r.rms_norm(x, weight("n", 6), 1e-5, 0.0, "norm")
        gate, up = r.linears(
            h, [Linear(weight("g", 20, 6), None), Linear(weight("u", 20, 6), None)], ["gate", "up"]
        )
        h = r.swiglu(gate, up, "silu", "act")
        x = r.linear(h, Linear(weight("d", 6, 20), None), "down", residual=x, residual_name="sum")
    x = r.gather_rows(x, r.inputs.logit_rows, "rows")
    return r.outputs(r.linear(x, Linear(weight("h", 10, 6), None), "lm_head"))


def live_ranges(program):
    """(first write, last read) of each scratch value, found independently of the plan."""
    ranges = {}
    for index, command in enumerate(program.commands):
        for value in (*command.outputs, *command.reads()):
            if value.storage is Storage.SCRATCH:
                first, _ = ranges.get(value, (index, index))
                ranges[value] = (first, index)
    return ranges


@pytest.mark.parametrize("trace", [None, TraceSpec(("*",))])
def test_values_alive_together_do_not_share_memory(trace):
    program = record(trace)
    memory = plan(program)
    ranges = live_ranges(program)
    assert len(ranges) >= 7
    for a, (a_first, a_last) in ranges.items():
        start = memory.offsets[id(a)]
        assert start % ALIGNMENT == 0 and start + a.nbytes(MAXIMA) <= memory.arena_bytes
        for b, (b_first, b_last) in ranges.items():
            if a is b or a_last < b_first or b_last < a_first:
                continue
            other = memory.offsets[id(b)]
            assert start + a.nbytes(MAXIMA) <= other or other + b.nbytes(MAXIMA) <= start


def test_every_hazard_has_a_barrier_and_the_chain_has_no_other():
    program = record()
    operations = [command.operation for command in program.commands]
    assert operations == [
        "embed", "rms_norm", "linear", "swiglu", "linear", "gather_rows", "linear", "argmax",
    ]  # fmt: skip
    # Each command reads what the one before it wrote, so each but the first waits.
    assert plan(program).barriers == (False,) + (True,) * 7


def test_commands_without_a_hazard_need_no_barrier():
    r = Recorder(MAXIMA, 4)
    a = r.embed(r.inputs.token_ids, weight("A", 10, 6), 1.0, "a")
    b = r.embed(r.inputs.token_ids, weight("B", 10, 6), 1.0, "b")
    program = r.outputs(r.gather_rows(r.add(a, b, 1.0, "sum"), r.inputs.logit_rows, "rows"))
    # a | b side by side; the sum waits for both; gather, then argmax wait for what is before them.
    assert plan(program).barriers == (False, False, True, True, True)


def test_a_traced_program_shows_the_sum_and_the_product_apart():
    program = record(TraceSpec(("layer.*", "lm_head")))
    assert set(program.taps) == {
        "layer.norm", "layer.gate", "layer.up", "layer.act", "layer.down", "layer.sum", "lm_head",
    }  # fmt: skip
    assert "add" in [command.operation for command in program.commands]
    assert "add" not in [command.operation for command in record().commands]


def test_without_a_trace_there_is_no_tap():
    assert not record().taps
    assert all(command.operation != "copy" for command in record().commands)


def test_patterns_choose_stages():
    assert set(record(TraceSpec(("*.gate", "lm_*"))).taps) == {"layer.gate", "lm_head"}


def test_a_tied_head_is_one_weight():
    r = Recorder(MAXIMA, 4)
    table = weight("E", 10, 6)
    x = r.gather_rows(r.embed(r.inputs.token_ids, table, 1.0, "e"), r.inputs.logit_rows, "rows")
    program = r.outputs(r.linear(x, Linear(table, None), "lm_head"))
    assert sum(value.storage is Storage.WEIGHT for value in program.values()) == 1
    assert program.weight_bytes() == 10 * 6 * 4


def test_an_embedding_that_is_only_looked_up_is_not_read_whole():
    # gate, up [20, 6] each, down [6, 20], head [10, 6], norm [6]; float32; not the table.
    assert record().weight_bytes() == 4 * (20 * 6 + 20 * 6 + 6 * 20 + 10 * 6 + 6)


def test_shapes_that_do_not_fit_are_refused_with_the_stage():
    r = Recorder(MAXIMA, 4)
    x = r.embed(r.inputs.token_ids, weight("E", 10, 6), 1.0, "embed")
    with pytest.raises(ShapeError, match=r"layer\.q: expected in_features \(6,\), found \(7,\)"):
        with r.stage("layer"):
            r.linear(x, Linear(weight("w", 4, 7), None), "q")


def test_the_listing_shows_stage_operation_shape_and_barrier():
    listing = str(record())
    line = r"\| layer\.down +linear +layer\.sum:F32\[N, 6\] <- layer\.act, d, embed"
    assert re.search(line, listing)
    assert re.search(r"arena [\d,]+ bytes, 7 barriers", listing)


def test_the_native_list_of_operations_is_the_same():
    text = (ROOT / "native/include/kestrel/ops.def").read_text()
    assert tuple(re.findall(r"^KST_OP\((\w+),", text, re.M)) == OPERATIONS
