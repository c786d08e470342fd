"""yarn, longrope and dynamic: tables by hand, and transformers' own."""

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest

from kestrel.errors import ConfigError
from kestrel.models import RopeConfig
from kestrel.models.rope import _powers, frequencies, inverse_frequencies

EPSILON = 2.0**-24  # relative error of one float32 rounding


def yarn(theta: float, factor: float, original: int, **changes) -> RopeConfig:
    settings = {"attention_factor": 1.25, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
    lengths = {"original_max_position_embeddings": original}
    return RopeConfig("yarn", theta, factor, **lengths, **{**settings, **changes})


def longrope(theta: float, short: list[float], long: list[float], original: int) -> RopeConfig:
    lengths = {"original_max_position_embeddings": original, "attention_factor": 1.5}
    factors = {"short_factor": tuple(short), "long_factor": tuple(long)}
    return RopeConfig("longrope", theta, **lengths, **factors)


def dynamic(theta: float, factor: float, limit: int) -> RopeConfig:
    return RopeConfig("dynamic", theta, factor, max_position_embeddings=limit)


def test_yarn_by_hand():
    # Pairs turn 4096 / (2 pi 10 ** i) times in 4096 tokens: 652, 65, 6.5, 0.65. 32 turns are at
    # 4 log10(4096 / 64 pi) / 4 = 1.31 pairs, 1 turn at 2.81: the ramp goes from 1 to 3.
    found = frequencies(yarn(10000.0, 4.0, 4096), 8, 16384)
    np.testing.assert_allclose(found.table, [[1, 0.1, 0.01 * 0.625, 0.001 / 4]], rtol=2**-21)
    assert found.scale == 1.25
    # Not cut to whole pairs, 2 stands at (2 - 1.309) / (2.814 - 1.309) of the ramp.
    low, high = math.log10(4096 / (64 * math.pi)), math.log10(4096 / (2 * math.pi))
    share = (2 - low) / (high - low)
    found = inverse_frequencies(yarn(10000.0, 4.0, 4096, truncate=False), 8)
    expected = [[1, 0.1, 0.01 * (1 - share * 0.75), 0.001 / 4]]
    np.testing.assert_allclose(found, expected, rtol=2**-21)


def test_yarn_where_the_ramp_is_a_step():
    # Both ends at pair 0: only it stays.
    found = inverse_frequencies(yarn(10000.0, 4.0, 6), 8)
    np.testing.assert_allclose(found, [[1, 0.1 / 4, 0.01 / 4, 0.001 / 4]], rtol=2**-21)


def test_longrope_has_a_row_for_short_and_one_for_long():
    rope = longrope(10000.0, [1, 1, 2, 4], [1, 5, 10, 20], 20)
    found = frequencies(rope, 8, 64)
    assert (found.table.shape, found.first_length, found.scale) == ((2, 4), 20, 1.5)
    expected = [[1, 0.1, 0.005, 0.00025], [1, 0.02, 0.001, 0.00005]]
    np.testing.assert_allclose(found.table, expected, rtol=2**-21)
    # A model that never sees more than 20 tokens never needs the long ones.
    never = frequencies(rope, 8, 20)
    assert never.table.tolist() == found.table[:1].tolist() and rope.length_range(20) is None
    assert rope.length_range(64) == rope.length_range(21) == (20, 21)


def test_dynamic_by_hand():
    # At 100 tokens: 3 * 100 / 30 - 2 = 8; 8 ** (8 / 6) = 16; theta is 160,000 = 20 ** 4.
    rope = dynamic(10000.0, 3.0, 30)
    assert rope.stretched(30) == 90
    found = frequencies(rope, 8, 100)
    assert (found.table.shape, found.first_length, found.scale) == ((71, 4), 30, 1.0)
    np.testing.assert_allclose(found.table[0], [1, 0.1, 0.01, 0.001], rtol=2**-22)
    np.testing.assert_allclose(found.table[70], [1, 1 / 20, 1 / 400, 1 / 8000], rtol=2**-20)
    assert (np.diff(found.table[:, 1:], axis=0) < 0).all()
    assert rope.length_range(100) == (30, 100) and rope.length_range(30) is None


def test_dynamic_tables_have_an_end():
    # 4096 to 16,384 tokens: 12,289 rows. 2 ** 20 to 8 times that: 7 * 2 ** 20 rows of 256 bytes.
    assert dynamic(1e4, 4.0, 4096).table_rows(128, 16384) == 12_289
    with pytest.raises(ConfigError) as caught:
        frequencies(dynamic(1e4, 8.0, 2**20), 128, 2**23)
    message = str(caught.value)
    assert "factor: dynamic RoPE from 1,048,576 to 8,388,608 tokens" in message
    assert "at most 64 MB" in message and "found 1,792 MB" in message


@pytest.mark.filterwarnings("error")
def test_extreme_settings_do_not_warn():
    for theta in (1e-37, 3e38):
        assert not np.isnan(inverse_frequencies(dynamic(theta, 3e38, 2), 8, range(2, 9))).any()
    assert np.isfinite(inverse_frequencies(yarn(3e38, 3e38, 2**31 - 1), 8)).all()
    huge = [3e38] * 4
    assert np.isfinite(inverse_frequencies(longrope(3e38, huge, huge, 1), 8, range(1, 3))).all()


def nearest(value: Decimal) -> np.float32:
    """Of three float32 values around a decimal the nearest, the even one of two."""
    middle = np.float32(float(value))
    near = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    return min([middle, *near], key=lambda x: (abs(Decimal(float(x)) - value), x.view("i4") & 1))


def test_powers_are_rounded_correctly():
    rng = np.random.default_rng(41)
    bases = np.exp(rng.uniform(0, 20, 40)).astype(np.float32)
    exponents = np.concatenate([np.arange(0, 1, 1 / 24), [4 / 3, 1.25, 1.0317]]).astype(np.float32)
    powers = _powers(bases, exponents)
    with decimal.localcontext(decimal.Context(prec=60)):
        for base, row in zip(bases, powers):
            for exponent, found in zip(exponents, row):
                assert found == nearest(Decimal(float(base)) ** Decimal(float(exponent)))


def test_powers_that_hardly_round_are_not_left_to_the_platform():
    # 4097 ** 2 = 16,785,409 and 257 ** 3 = (257 ** 2) ** 1.5 = 16,974,593 lie between two floats.
    assert _powers([4097.0], [2.0])[0, 0] == 16_785_408.0
    assert _powers([66_049.0], [1.5])[0, 0] == 16_974_592.0
    assert _powers([4099.0], [2.0])[0, 0] == 16_801_800.0  # 16,801,801; half of ..800 is even


CASES = {
    "yarn": yarn(1e4, 4.0, 4096),
    "yarn-1e6": yarn(1e6, 32.0, 32768),
    "yarn-short": yarn(150000.0, 2.5, 64, beta_fast=24.0, beta_slow=3.5),
    "yarn-untruncated": yarn(1e4, 7.3, 2048, truncate=False),
    "longrope": longrope(1e4, [1 + i / 9 for i in range(32)], [1 + i * i for i in range(32)], 4096),
}


@pytest.fixture(scope="module")
def reference():
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers_frequencies


def transformers_frequencies(rope: RopeConfig, head_dim: int, length: int, context: int = 131072):
    """inv_freq and the factor of cos and sin, by ROPE_INIT_FUNCTIONS."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    block = {k: list(v) if isinstance(v, tuple) else v for k, v in rope.settings()}
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=context,
        rope_parameters=block,
    )
    found, scale = ROPE_INIT_FUNCTIONS[rope.type](config, "cpu", seq_len=torch.tensor(length))
    return found.numpy(), scale


@pytest.mark.reference
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [100, 4096, 4097])
def test_tables_of_transformers(reference, name, length):
    """The same bits wherever torch's power is the correctly rounded one.

    Elsewhere torch's is within 2 EPSILON and ours within one; factor, reciprocal, weight and sum
    round once more on each side: 11 in all, and 0.1 for products of errors.
    """
    import torch

    rope = CASES[name]
    theirs, scale = reference(rope, 64, length)
    (ours,) = inverse_frequencies(rope, 64, range(length, length + 1))
    exponents = torch.arange(0, 64, 2).float() / 64
    same = (rope.theta**exponents).numpy() == _powers([rope.theta], exponents.numpy())[0]
    assert same.mean() >= 0.5, "hardly a power is equal: the comparison below would be empty"
    assert (ours[same] == theirs[same]).all()
    assert (np.abs(ours / theirs.astype(np.float64) - 1) <= 11.1 * EPSILON).all()
    assert scale == frequencies(rope, 64, 131072).scale


@pytest.mark.reference
@pytest.mark.parametrize("head_dim, factor", [(4, 3.0), (8, 2), (64, 4.0), (80, 3.3), (128, 8.0)])
def test_dynamic_tables_of_transformers(reference, head_dim, factor):
    """The growth's power is within 3 EPSILON of theirs, its product with theta rounds on both
    sides: 5. The power of that adds 3, the reciprocals 2: 10, and 0.1 for products of errors."""
    rope = dynamic(1e4, float(factor), 4096)
    table = frequencies(rope, head_dim, rope.stretched(4096)).table
    equal = []
    for length in (1, 4095, 4096, 4097, 4098, 5000, 6143, 8191, rope.stretched(4096)):
        theirs, _ = reference(rope, head_dim, length, 4096)
        ours = table[max(length - 4096, 0)]
        assert (np.abs(ours / theirs.astype(np.float64) - 1) <= 10.1 * EPSILON).all()
        equal.append((ours == theirs).mean())
    assert np.mean(equal) > 0.4, "equal in few places: the order of operations is another"
