"""The vector vocabulary (native/cpu/simd/vec.h), lane by lane, on every instruction set.

What a name means is computed here by NumPy or in exact rational arithmetic, not by the scalar
build. NaN counts as equal to NaN; every other value is compared to the bit.
"""

from fractions import Fraction

import numpy as np
import pytest
from checkpoints import encode
from conformance.helpers import isas

from kestrel.runtime import native_ops

SPECIAL = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-126), 3.4e38]


def vectors(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three float32 vectors of 16 lanes: wide exponents, and every special value somewhere."""
    rng = np.random.default_rng(seed)
    lanes = np.float32(rng.standard_normal((3, 16)) * 2.0 ** rng.integers(-20, 20, (3, 16)))
    if seed % 2:
        lanes[rng.integers(0, 3, 10), rng.permutation(16)[:10]] = rng.permutation(SPECIAL)
    return tuple(lanes)


def call(isa: str, name: str, a, b=None, c=None) -> np.ndarray:
    """16 float32 lanes; operands are padded to 64 bytes."""
    operands = [b"" if v is None else np.asarray(v).tobytes() for v in (a, b, c)]
    padded = [value.ljust(64, b"\0") for value in operands]
    return np.frombuffer(native_ops().simd_test(isa, name, *padded), np.float32)


def same(found: np.ndarray, expected: np.ndarray) -> None:
    expected = np.asarray(expected, np.float32)
    bits = found.view(np.uint32) == expected.view(np.uint32)
    assert (bits | (np.isnan(found) & np.isnan(expected))).all(), (found, expected)


def to_float32(exact: Fraction) -> np.float32:
    """Round to nearest, ties to even: through float64 it would round twice."""
    if exact == 0:
        return np.float32(0.0)
    exponent = max(-149, (abs(exact.numerator).bit_length() - exact.denominator.bit_length()) - 24)
    units = round(exact / Fraction(2) ** exponent)  # Fraction rounds half to even
    if abs(units) > 1 << 24:  # one digit too many: take a unit twice as large
        exponent += 1
        units = round(exact / Fraction(2) ** exponent)
    return np.float32(np.ldexp(float(units), exponent))


def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    if not all(map(np.isfinite, (a, b, c))):
        with np.errstate(invalid="ignore"):
            return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:  # the sign of a zero is that of the sum of two zeros
        return np.float32(a * b + c) if c == 0 else np.float32(0.0)
    return to_float32(exact)


def select(condition, yes, no):
    return np.where(condition, yes, no)


#: name -> function of three vectors. n, where a name takes one, is the first lane of c.
LANEWISE = {
    "load": lambda a, b, c: a,
    "store_split": lambda a, b, c: a,  # and joined again
    "set1": lambda a, b, c: np.full(16, c[0]),
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / b,
    "max": lambda a, b, c: select(a > b, a, b),
    "fma": lambda a, b, c: np.array(list(map(fma, a, b, c))),
    "vt_fma": lambda a, b, c: np.array(list(map(fma, a, b, np.full(16, c[0])))),
    "select_lt": lambda a, b, c: select(a < b, c, a),
    "select_nan": lambda a, b, c: select(np.isnan(a), a, b),
}
COUNTED = {
    "load_n": lambda a, b, n: select(np.arange(16) < n, a, 0),
    "store_n": lambda a, b, n: select(np.arange(16) < n, a, 0),
    "keep_n": lambda a, b, n: select(np.arange(16) < n, a, b),
}
ELSEWHERE = {
    "load_f16", "load_bf16", "load_bf16_split", "load_f16_n", "load_bf16_n", "store_f16",
    "store_f16_n", "exp", "tanh", "hsum", "hmax", "hsum4", "hsum8",
}  # fmt: skip


def test_every_name_is_tested():
    assert set(native_ops().simd_names()) == {*LANEWISE, *COUNTED, *ELSEWHERE}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", LANEWISE)
def test_lanes(isa, name):
    for seed in range(20):
        a, b, c = vectors(seed)
        with np.errstate(all="ignore"):
            same(call(isa, name, a, b, c), LANEWISE[name](a, b, c))


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", COUNTED)
def test_counted_lanes(isa, name):
    a, b, _ = vectors(3)
    for n in range(17):
        same(call(isa, name, a, b, np.float32([n])), COUNTED[name](a, b, n))


@pytest.mark.parametrize("isa", isas())
def test_every_half_widens_and_comes_back(isa):
    for start in range(0, 1 << 16, 16):
        halves = np.arange(start, start + 16, dtype=np.uint16)
        wide = halves.view(np.float16).astype(np.float32)
        same(call(isa, "load_f16", halves), wide)
        for name in ("load_bf16", "load_bf16_split"):
            same(call(isa, name, halves), (halves.astype(np.uint32) << 16).view(np.float32))
        back = call(isa, "store_f16", wide).view(np.uint16)[:16]
        number = ~np.isnan(wide)
        np.testing.assert_array_equal(back[number], halves[number])


@pytest.mark.parametrize("isa", isas())
def test_halves_are_rounded_to_nearest_even(isa):
    rng = np.random.default_rng(5)
    edges = [65504.0, 65519.996, 65520.0, 2.0**-25, 2.0**-24 * 1.5, 6.1e-5, 1 + 2.0**-11, -1e30]
    for trial in range(200):
        values = np.float32(rng.standard_normal(16) * 2.0 ** rng.integers(-30, 18, 16))
        values[: len(edges)] = values[: len(edges)] if trial else edges
        with np.errstate(over="ignore"):
            expected = values.astype(np.float16).view(np.uint16)
        np.testing.assert_array_equal(call(isa, "store_f16", values).view(np.uint16)[:16], expected)


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("name", ["load_f16_n", "load_bf16_n", "store_f16_n"])
def test_counted_halves(isa, name):
    values, _, _ = vectors(2)
    dtype = "BF16" if "bf16" in name else "F16"
    halves = np.frombuffer(encode(values, dtype), np.uint16)
    for n in range(1, 16):
        if name == "store_f16_n":
            kept = call(isa, name, values, None, np.float32([n])).view(np.uint16)[:16]
            np.testing.assert_array_equal(kept, np.where(np.arange(16) < n, halves, 0))
        else:
            whole = call(isa, name.removesuffix("_n"), halves)
            kept = call(isa, name, halves, None, np.float32([n]))
            same(kept, np.where(np.arange(16) < n, whole, 0))


@pytest.mark.parametrize("isa", isas())
def test_exp_is_within_an_ulp(isa):
    for start in np.linspace(-87.3, 88.7, 500, dtype=np.float32):
        x = start + np.linspace(0, 0.3, 16, dtype=np.float32)
        x = x[x < 88.72]
        expected = np.exp(x.astype(np.float64))
        found = call(isa, "exp", x)[: len(x)].astype(np.float64)
        ulp = np.spacing(expected.astype(np.float32)).astype(np.float64)
        assert (np.abs(found - expected) <= ulp).all()
    edges = np.float32([-np.inf, -1e30, -88.0, np.inf, 89.0, np.nan, 0.0, -0.0])
    same(call(isa, "exp", edges)[:8], [0, 0, 0, np.inf, np.inf, np.nan, 1, 1])


@pytest.mark.parametrize("isa", isas())
def test_tanh_is_within_an_ulp(isa):
    sizes = np.concatenate([np.geomspace(2.0**-126, 0.1, 4000), np.linspace(0.1, 10, 4000)])
    for part in np.split(np.float32(sizes * np.resize([1, -1], 8000)), 500):
        expected = np.tanh(part.astype(np.float64))
        found = call(isa, "tanh", part).astype(np.float64)
        ulp = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
        assert (np.abs(found - expected) <= ulp).all()
    edges = np.float32([-np.inf, np.inf, 9.1, -3e38, np.nan, 0.0, 2.0**-149, -(2.0**-130)])
    same(call(isa, "tanh", edges)[:8], [-1, 1, 1, -1, np.nan, 0, 2.0**-149, -(2.0**-130)])


def tree(lanes: np.ndarray, join) -> np.float32:
    """The one order of every sum: 8, 4, 2, 1."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = join(lanes[:half], lanes[half:])
    return lanes[0]


@pytest.mark.parametrize("isa", isas())
def test_sums_and_maxima_of_lanes(isa):
    for seed in range(0, 40, 2):  # finite values
        a, b, c = vectors(seed)
        rows = (a, b, c, a + b)
        sums = [tree(row, np.add) for row in rows]
        same(call(isa, "hsum", a)[:1], sums[:1])
        same(call(isa, "hsum4", a, b, c)[:4], sums)
        eight = [*rows, b + c, a - b, a * b, c]
        same(call(isa, "hsum8", a, b, c)[:8], [tree(row, np.add) for row in eight])
        same(call(isa, "hmax", a)[:1], [tree(a, np.maximum)])


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="no 'nothing' on 'scalar'; names are load"):
        call("scalar", "nothing", np.zeros(16, np.float32))
