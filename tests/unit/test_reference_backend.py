"""The reference backend's operations against arithmetic by hand and plain Python formulas."""

from __future__ import annotations

import cmath
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from api.tiny import write_tiny

import kestrel
from kestrel.backends.host import HostBuffer, check_finite
from kestrel.backends.reference import OPERATIONS, ReferenceBackend
from kestrel.dtypes import Dtype
from kestrel.errors import NumericalError, SessionBusyError, UnsupportedOperationError
from kestrel.program.program import OPERATIONS as NAMES
from kestrel.program.program import Command

F32 = np.float32


#: Attributes of the plain operations: what no family asks for.
PLAIN = {
    "embed": {"scale": 1.0},
    "rms_norm": {"offset": 0.0},
    "linear": {"scale": 1.0},
    "attention": {"window": 0, "soft_cap": 0.0},
    "swiglu": {"activation": "silu"},
    "add": {"scale": 1.0},
}


def run(operation: str, *inputs, step=None, **attributes):
    """One operation on arrays, without a program around it."""
    attributes = {**PLAIN.get(operation, {}), **attributes}
    command = Command(operation, "stage", (), (), attributes)
    return OPERATIONS[operation](command, step, *inputs)


def test_every_operation_of_the_closed_list():
    assert tuple(OPERATIONS) == NAMES


def test_embed():
    table = np.arange(12, dtype=F32).reshape(4, 3)
    assert run("embed", np.array([3, 0, 3], np.int32), table).tolist() == [
        [9, 10, 11], [0, 1, 2], [9, 10, 11],
    ]  # fmt: skip


def test_rotary_embedding_rounds_the_angle_once():
    inverse = np.array([1.0, 0.1], F32)
    positions, lengths = np.array([0, 1, 131071], np.int32), np.zeros(3, np.int32)
    one_row = {"rows": 1, "first_length": 0, "scale": 2.0}
    cos, sin = run("rotary_embedding", positions, lengths, inverse[None], **one_row)
    for row, position in enumerate((0, 1, 131071)):
        for column, frequency in enumerate(inverse):
            exact = Fraction(position) * Fraction(float(frequency))
            angle = float(F32(float(exact)))
            # A product of a 17-bit and a 24-bit integer is exact in float64: one rounding.
            assert Fraction(float(exact)) == exact
            assert cos[row, column] == F32(math.cos(angle)) * 2
            assert sin[row, column] == F32(math.sin(angle)) * 2
    assert cos.dtype == sin.dtype == F32
    assert cos[0].tolist() == [2, 2] and sin[0].tolist() == [0, 0]


def test_rotary_embedding_takes_the_row_of_the_length():
    table = np.array([[0.0], [math.pi / 2], [math.pi]], F32)
    lengths = np.array([3, 10, 11, 12, 99], np.int32)  # rows 0, 0, 1, 2, 2
    cos, _ = run("rotary_embedding", np.ones(5, np.int32), lengths, table,
                 rows=3, first_length=10, scale=1.0)  # fmt: skip
    assert cos[:, 0] == pytest.approx([1, 1, 0, -1, -1], abs=1e-7)


def test_rms_norm_of_heads_with_an_offset():
    x = np.array([[3, 4, 0, 2]], F32)
    y = run("rms_norm", x, np.array([1, 0], F32), eps=0.5, offset=1.0)
    # mean(9, 16) + 0.5 = 13 and mean(0, 4) + 0.5 = 2.5; weights 2 and 1.
    expected = [6 / math.sqrt(13), 4 / math.sqrt(13), 0, 2 / math.sqrt(2.5)]
    assert y[0] == pytest.approx(expected, rel=1e-15)


def test_rms_norm():
    x = np.array([[3, 4], [0, 0]], F32)
    y = run("rms_norm", x, np.array([2, 10], F32), eps=0.5)
    # mean(9, 16) + 0.5 = 13; the second row is 0 / sqrt(0.5).
    assert y[0] == pytest.approx([6 / math.sqrt(13), 40 / math.sqrt(13)], rel=1e-15)
    assert y[1].tolist() == [0, 0]


def test_rms_norm_of_large_values_does_not_overflow():
    x = np.full((1, 4), 3e38, F32)
    assert run("rms_norm", x, np.ones(4, F32), eps=1e-6)[0] == pytest.approx([1] * 4, rel=1e-15)


def test_linear_accumulates_in_float64():
    x = np.array([[1e8, 1.0, -1e8]], F32)  # float32 sums give 0
    (y,) = run("linear", x, np.ones((1, 3), F32), *[None] * 6)
    assert y.tolist() == [[1.0]]


def test_linear_with_three_weights_and_biases():
    x = np.array([[1, 2], [3, 4]], F32)
    q = np.array([[1, 0], [0, 1], [1, 1]], F32)
    k, v = np.array([[2, 0]], F32), np.array([[0, 5]], F32)
    outputs = run("linear", x, q, k, v, np.array([10, 20, 30], F32), None, np.array([7], F32), None)
    assert [y.tolist() for y in outputs] == [
        [[11, 22, 33], [13, 24, 37]],
        [[2], [6]],
        [[17], [27]],
    ]


def test_linear_with_residual_and_scale():
    x, residual, weight = np.array([[3]], F32), np.array([[100]], F32), np.array([[5]], F32)
    bias = np.array([1], F32)
    (y,) = run("linear", x, weight, None, None, bias, None, None, residual, scale=0.5)
    assert y.tolist() == [[108]]


def test_linear_with_residual():
    x, residual = np.array([[1, 2]], F32), np.array([[100, 200]], F32)
    weight, bias = np.array([[1, 1], [1, -1]], F32), np.array([5, 6], F32)
    (y,) = run("linear", x, weight, None, None, bias, None, None, residual)
    assert y.tolist() == [[108, 205]]


def test_rope_is_a_complex_rotation_of_halves():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((3, 2 * 6)).astype(F32), rng.standard_normal((3, 6)).astype(F32)
    angles = rng.uniform(0, 7, (3, 3))
    cos, sin = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
    outputs = run("rope", q, k, cos, sin, head_dim=6, rotary_dim=6)
    for x, y in zip((q, k), outputs):
        assert x.shape == y.shape
        for n in range(3):
            for head in range(x.shape[1] // 6):
                for i in range(3):
                    a, b = 6 * head + i, 6 * head + i + 3
                    turn = complex(cos[n, i], sin[n, i])
                    turned = complex(x[n, a], x[n, b]) * turn
                    assert cmath.isclose(complex(y[n, a], y[n, b]), turned, rel_tol=1e-14)


def test_rope_by_a_quarter_turn():
    q = np.array([[1, 2, 3, 4]], F32)
    zero, one = np.zeros((1, 2), F32), np.ones((1, 2), F32)
    turned, _ = run("rope", q, q, zero, one, head_dim=4, rotary_dim=4)
    assert turned.tolist() == [[-3, -4, 1, 2]]
    turned, _ = run("rope", q, q, zero[:, :1], one[:, :1], head_dim=4, rotary_dim=2)
    assert turned.tolist() == [[-2, 1, 3, 4]]


def test_geglu_and_soft_cap():
    gate, up = np.array([[0, 1, -1, 40, -40]], F32), np.array([[3, 2, 2, 2, 2]], F32)
    y = run("swiglu", gate, up, activation="gelu_tanh")
    # gelu(1) by its tanh form, 0.841192 (Hendrycks and Gimpel); gelu(-1) = gelu(1) - 1.
    assert y[0] == pytest.approx([0, 2 * 0.8411920, -2 * 0.1588080, 80, 0], abs=1e-6)
    x = np.array([[0, 30, -1e9]], F32)
    capped = run("soft_cap", x, scale=1.0, cap=30.0)
    assert capped[0] == pytest.approx([0, 30 * math.tanh(1), -30], rel=1e-15)
    assert run("soft_cap", x, scale=0.5, cap=0.0).tolist() == [[0, 15, -5e8]]


def test_swiglu():
    gate, up = np.array([[0, 1, -1, 1000, -1000]], F32), np.array([[3, 2, 2, 2, 2]], F32)
    with np.errstate(all="raise", under="ignore"):
        y = run("swiglu", gate, up)
    e = math.e
    assert y[0, :4] == pytest.approx([0, 2 / (1 + 1 / e), -2 / (1 + e), 2000], rel=1e-15)
    assert y[0, 4] == 0


def test_add_gather_and_copy():
    a, b = np.array([[1, 2]], F32), np.array([[10, 20]], F32)
    assert run("add", a, b).tolist() == [[11, 22]]
    assert run("add", a, b, scale=0.5).tolist() == [[6, 12]]
    rows = np.array([2, 0], np.int32)
    assert run("gather_rows", np.array([[1], [2], [3]], F32), rows).tolist() == [[3], [1]]
    assert run("copy", a) is a


def test_argmax():
    inf = math.inf
    logits = np.array(
        [[1, 3, 3, 2], [-1, -2, -1, -3], [0, math.nan, 9, 1], [0, inf, 1, 2], [0, 1, -inf, 2]], F32
    )
    assert run("argmax", logits).tolist() == [1, 0, -1, -1, -1]


def test_check_finite_says_where():
    values = np.ones((3, 4), F32)
    check_finite("x", values)
    values[1, 2], values[2, 0] = math.nan, math.inf
    with pytest.raises(NumericalError, match="x: 2 values not finite, the first in row 1"):
        check_finite("x", values)


def test_activations_are_rounded_to_float32_after_each_operation(tmp_path):
    with kestrel.load(write_tiny(tmp_path), backend="reference") as model:
        trace = model.trace([5, 6, 7], ["model.layers.0.mlp.*"])
    assert all(values.dtype == F32 for values in trace.values())
    gate, up = trace["model.layers.0.mlp.gate_proj"], trace["model.layers.0.mlp.up_proj"]
    for n in range(3):
        for i in range(gate.shape[1]):
            g, u = float(gate[n, i]), float(up[n, i])
            exact = g / (1 + math.exp(-g)) * u
            # Rounded once from float64, whose own error may decide a tie: one unit at most.
            found = trace["model.layers.0.mlp.swiglu"][n, i]
            assert abs(float(found) - exact) <= np.spacing(abs(F32(exact))) * 0.5000001


def test_one_step_at_a_time(tmp_path):
    with kestrel.load(write_tiny(tmp_path), backend="reference") as model:
        executable = model.runner.executable
        executable.submit(1, 1, 1)
        with pytest.raises(SessionBusyError, match="wait for it"):
            executable.submit(1, 1, 1)
        executable.cancel()
        assert model.session().prefill([1, 2]).shape == (64,)


def test_an_unknown_operation():
    program = SimpleNamespace(commands=[Command("conv1d", "model.layers.3.conv", (), ())])
    with pytest.raises(UnsupportedOperationError, match=r"model\.layers\.3\.conv.*'conv1d'"):
        ReferenceBackend().compile(program)


def test_buffers():
    buffer = HostBuffer(8)
    buffer.write(2, memoryview(b"abc"))
    found = bytearray(5)
    buffer.read(1, memoryview(found))
    assert bytes(found) == b"\0abc\0" and buffer.nbytes == 8
