"""Dynamic RoPE: a theta for each length, to the bits of transformers."""

import numpy as np
import pytest

from kestrel.models import RopeConfig
from kestrel.models.rope import frequencies

#: theta 500000, factor 8, made for 20 tokens, heads of 16 columns: inv_freq that transformers
#: 5.24.0 holds after a call on so many tokens. The exponent 16 / 14 rounded to float32 would give
#: other bits at 21 and 160.
RECORDED = {
    20: [
        1.0, 0.193922758102417, 0.03760603070259094, 0.00729266507551074, 0.001414213445968926,
        0.00027424818836152554, 5.3182957344688475e-05, 1.0313385246263351e-05,
    ],
    21: [
        1.0, 0.18482185900211334, 0.03415912017226219, 0.0063133519142866135,
        0.0011668454390019178, 0.0002156585396733135, 3.9858412492321804e-05,
        7.366706540778978e-06,
    ],
    160: [
        1.0, 0.10884024202823639, 0.011846196837723255, 0.0012893428793177009,
        0.0001403323985869065, 1.527381027699448e-05, 1.6624052250335808e-06,
        1.8093658127327217e-07,
    ],
}  # fmt: skip
DYNAMIC = RopeConfig("dynamic", 500000.0, 8.0, max_position_embeddings=20)


@pytest.mark.parametrize("length", RECORDED)
def test_recorded_bits(length):
    found = frequencies(DYNAMIC, 16, 160)
    assert (found.first_length, found.scale, found.table.shape) == (20, 1.0, (141, 8))
    assert found.table[length - 20].tolist() == RECORDED[length]


def test_theta_by_hand():
    # Twice the length, factor 3: theta * (3 * 2 - 2) ** (4 / 2) = 16 theta, whose square root
    # divides the second pair.
    rope = RopeConfig("dynamic", 10000.0, 3.0, max_position_embeddings=64)
    assert frequencies(rope, 4, 192).table[64].tolist() == [1.0, np.float32(1 / 400)]


@pytest.mark.reference
@pytest.mark.parametrize("head_dim", [6, 8, 16, 64, 128])
@pytest.mark.parametrize("factor, limit", [(2, 64), (3.3, 100), (8.0, 20)])
def test_every_length_against_transformers(head_dim, factor, limit):
    """Equal bits nearly everywhere; where torch's pow is not the nearest float32, near.

    theta of a length is a float64 power, rounded, on both sides. Its powers are within 2 units of
    2 ** -24 (1 ulp) of the exact value there, within 1 here; the reciprocals round once each.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=limit,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": factor},
    )
    embedding = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    lengths = range(limit, int(factor * limit) + 1)
    rows = []
    for length in lengths:
        embedding(torch.zeros(1), torch.tensor([[length - 1]]))
        rows.append(embedding.inv_freq.numpy().copy())
    rope = RopeConfig("dynamic", 10000.0, float(factor), max_position_embeddings=limit)
    found = frequencies(rope, head_dim, lengths[-1])
    expected = np.stack(rows)
    assert found.table.shape == expected.shape and found.first_length == limit
    assert (found.table == expected).mean() > 0.9
    assert (np.abs(found.table / expected.astype(np.float64) - 1) <= 5.01 * 2.0**-24).all()
