"""Inverse frequencies: numbers worked out by hand, published code, and transformers' own bits."""

import decimal
import math

import numpy as np
import pytest

from kestrel.models import RopeConfig
from kestrel.models.rope import frequencies, inverse_frequencies as table_of


def inverse_frequencies(rope: RopeConfig, rotary_dim: int) -> np.ndarray:
    """The only row of a type that does not ask for lengths."""
    (row,) = table_of(rope, rotary_dim)
    return row


LLAMA31 = RopeConfig("llama3", 500000.0, 8.0, 1.0, 4.0, 8192)
LLAMA32 = RopeConfig("llama3", 500000.0, 32.0, 1.0, 4.0, 8192)
EPSILON = 2.0**-24  # relative error of one float32 rounding

# context / wavelength is at most 4 (high_freq_factor) and carries 5 roundings (1 / inv_freq, 2 pi
# and its product, 1 / wavelength, times context): 20. Minus 1 (low_freq_factor) it is at most 3 and
# rounds once more: 23; over 3, and rounded: smooth is off by 23 / 3 + 1 < 9. In the blend that
# counts for at most plain, and so do the roundings of its terms and their sum: 3.
LLAMA3_ROUNDINGS = 12


def test_powers_of_ten():
    # 10000 ** (2i / 8) is 1, 10, 100, 1000.
    expected = np.array([1, 0.1, 0.01, 0.001], np.float32)
    assert inverse_frequencies(RopeConfig(), 8).tolist() == expected.tolist()


def test_the_buffer_of_llama_1_checkpoints():
    # rotary_emb.inv_freq of Llama 7B: 10 ** (-i / 16).
    inv_freq = inverse_frequencies(RopeConfig(theta=10000.0), 128)
    published = [1.0, 0.8659643, 0.7498942, 0.64938163, 0.56234133, 0.48696753]
    np.testing.assert_allclose(inv_freq[:6], published, rtol=2**-23)
    assert inv_freq.dtype == np.float32 and inv_freq.shape == (64,)
    assert inv_freq[16] == np.float32(0.1) and inv_freq[48] == np.float32(0.001)


@pytest.mark.parametrize("theta", [10000.0, 500000.0, 1e6, 123456.789, 3.0, 1.0, 0.5, 1e-30, 3e38])
@pytest.mark.parametrize("head_dim", [2, 6, 48, 80, 128, 256])
def test_within_two_roundings_of_the_exact_value(theta, head_dim):
    # Exact for the float32 exponent: the power rounds once, its reciprocal once more.
    inv_freq = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    with decimal.localcontext(decimal.Context(prec=60)):
        base = decimal.Decimal(float(np.float32(theta)))
        for i, found in enumerate(inv_freq):
            exponent = decimal.Decimal(float(np.float32(2 * i) / np.float32(head_dim)))
            error = decimal.Decimal(float(found)) * base**exponent - 1
            normal = abs(float(found)) >= np.finfo(np.float32).tiny
            assert abs(error) <= decimal.Decimal(2 * EPSILON + EPSILON**2) or not normal


def test_a_callers_decimal_context_does_not_matter():
    expected = inverse_frequencies(RopeConfig(), 64)
    traps = [decimal.Inexact, decimal.Rounded]
    with decimal.localcontext(decimal.Context(prec=3, traps=traps)):
        assert inverse_frequencies(RopeConfig(), 64).tobytes() == expected.tobytes()


def test_linear_divides():
    plain = inverse_frequencies(RopeConfig(theta=50000.0), 64)
    four = inverse_frequencies(RopeConfig("linear", 50000.0, 4.0), 64)
    assert (four * 4 == plain).all()  # exact: a power of two
    three = inverse_frequencies(RopeConfig("linear", 50000.0, 3.0), 64)
    assert (np.abs(three.astype(np.float64) * 3 / plain - 1) <= EPSILON).all()


def published_llama3(freqs, scale, low, high, context):
    """apply_scaling of Meta's llama_models reference code, in float64."""
    scaled = []
    for freq in freqs:
        wavelength = 2 * math.pi / freq
        if wavelength < context / high:
            scaled.append(freq)
        elif wavelength > context / low:
            scaled.append(freq / scale)
        else:
            smooth = (context / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * freq / scale + smooth * freq)
    return np.array(scaled)


@pytest.mark.parametrize("rope", [LLAMA31, LLAMA32])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_llama3_follows_the_published_code(rope, head_dim):
    plain = inverse_frequencies(RopeConfig(theta=rope.theta), head_dim)
    found = inverse_frequencies(rope, head_dim)
    expected = published_llama3(plain.astype(np.float64), rope.factor, 1.0, 4.0, 8192)
    wavelength = 2 * np.pi / plain.astype(np.float64)
    short, long = wavelength < 2048, wavelength > 8192
    assert short.any() and long.any() and (~short & ~long).any()
    assert (found[short] == plain[short]).all()
    assert (found[long] * np.float32(rope.factor) == plain[long]).all()  # a power of two
    assert (np.abs(found - expected) <= LLAMA3_ROUNDINGS * EPSILON * plain).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("theta", [1e-37, 1.0, 3e38])
@pytest.mark.parametrize("low, context", [(1e-38, 2**31 - 1), (1e-38, 1), (1.0, 2**31 - 1)])
def test_extreme_settings_stay_finite(theta, low, context):
    inv_freq = inverse_frequencies(RopeConfig("llama3", theta, 3e38, low, 3e38, context), 16)
    assert np.isfinite(inv_freq).all()


@pytest.mark.parametrize("rope", [RopeConfig(), RopeConfig("linear", 1e4, 2.0), LLAMA31])
def test_attention_is_not_scaled(rope):
    found = frequencies(rope, 64, 4096)
    assert found.scale == 1.0 and found.table.shape == (1, 32)


@pytest.mark.parametrize("position", [1857, 32_767, 131_071])
def test_angles_far_out_keep_float32_precision(position):
    # S41: bfloat16 anywhere would be off by position * inv_freq / 512, whole turns here.
    inv_freq = inverse_frequencies(RopeConfig(theta=500000.0), 128)
    exponents = np.arange(0, 128, 2) / 128  # exact: multiples of 2 ** -6
    exact = position * 500000.0**-exponents
    angles = np.float32(position) * inv_freq
    assert (np.abs(angles - exact) <= 4 * EPSILON * exact).all()


CASES = [
    RopeConfig(),
    RopeConfig(theta=500000.0),
    RopeConfig(theta=1000000.0),
    RopeConfig(theta=12345.678),
    RopeConfig("linear", 10000.0, 4.0),
    RopeConfig("linear", 100000.0, 3.3),
    LLAMA31,
    LLAMA32,
    RopeConfig("llama3", 10000.0, 3.0, 1.3, 4.7, 1000),
]


@pytest.fixture(scope="module")
def reference():
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers_inverse_frequencies


def transformers_inverse_frequencies(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """inv_freq of a LlamaRotaryEmbedding, computed by transformers and torch."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    values = {name: getattr(rope, name) for name in names if getattr(rope, name) is not None}
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": rope.type, "rope_theta": rope.theta, **values},
    )
    return LlamaRotaryEmbedding(config).inv_freq.numpy()


@pytest.mark.reference
@pytest.mark.parametrize("head_dim", [8, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("rope", CASES, ids=lambda rope: f"{rope.type}-{rope.theta:g}")
def test_bits_of_transformers(reference, rope, head_dim):
    """Equal bits wherever torch's power is the correctly rounded one; elsewhere near.

    torch's power (Sleef) is within 1.0 units in the last place, 2 EPSILON, of the exact value; ours
    within EPSILON; the reciprocals round once each: 5 in all, and 0.01 for products of errors.
    What follows is the same arithmetic.
    """
    plain = RopeConfig(theta=rope.theta)
    ours, theirs = inverse_frequencies(plain, head_dim), reference(plain, head_dim)
    same = ours == theirs
    assert same.mean() >= 0.5, "hardly a value is equal: the comparison below would be empty"
    assert (np.abs(ours / theirs.astype(np.float64) - 1) <= 5.01 * EPSILON).all()
    scaled, expected = inverse_frequencies(rope, head_dim), reference(rope, head_dim)
    assert (scaled[same] == expected[same]).all()
    # The blend moves by at most 1 + high / (high - low) < 2.4 times what inv_freq does.
    bound = (2.4 * 5.01 + 2 * LLAMA3_ROUNDINGS) * EPSILON * theirs
    assert (np.abs(scaled.astype(np.float64) - expected) <= bound).all()
