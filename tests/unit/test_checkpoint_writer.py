"""The test suites' checkpoint writer, against the safetensors package and published roundings."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors import deserialize
from safetensors.numpy import load_file

from checkpoints import (
    encode,
    round_to,
    tiny_llama_config,
    tiny_llama_tensors,
    write_checkpoint,
    write_safetensors,
)


def test_the_package_reads_what_the_writer_writes(tmp_path):
    tensors = tiny_llama_tensors(tiny_llama_config(), seed=3)
    for dtype in ("F32", "F16"):
        write_safetensors(tmp_path / dtype, tensors, dtype)
        found = load_file(tmp_path / dtype)
        assert found.keys() == tensors.keys()
        for name, values in tensors.items():
            np.testing.assert_array_equal(found[name], values.astype(found[name].dtype))


def test_bf16_rounds_to_nearest_even():
    # Bits written out by hand: 1, halfway up and down to even, above half, overflow, both zeros.
    pairs = [
        (0x3F800000, 0x3F80),
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x7F7FFFFF, 0x7F80),
        (0x80000000, 0x8000),
        (0x7F800000, 0x7F80),
        (0x7F800001, 0x7FC0),
    ]
    values = np.array([bits for bits, _ in pairs], np.uint32).view(np.float32)
    found = np.frombuffer(encode(values, "BF16"), "<u2")
    assert [hex(x) for x in found] == [hex(x) for _, x in pairs]


@pytest.mark.reference
def test_bf16_is_the_rounding_of_torch():
    torch = pytest.importorskip("torch", reason="torch absent: BF16 not compared with it")
    values = np.random.default_rng(4).standard_normal(10_000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(round_to(values, "BF16"), expected)


def test_llama_tensors_have_the_shapes_of_the_config():
    config = tiny_llama_config(head_dim=16, attention_bias=True, tie_word_embeddings=True)
    shapes = {name: t.shape for name, t in tiny_llama_tensors(config, seed=1).items()}
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (64, 32)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (32, 32)
    assert shapes["model.layers.1.self_attn.o_proj.weight"] == (32, 64)
    assert shapes["model.layers.0.self_attn.o_proj.bias"] == (32,)
    assert "model.layers.0.mlp.up_proj.bias" not in shapes
    assert "lm_head.weight" not in shapes


def test_shards_hold_every_tensor_once(tmp_path):
    tensors = tiny_llama_tensors(tiny_llama_config(), seed=3)
    write_checkpoint(tmp_path, tiny_llama_config(), tensors, "BF16", shards=3)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    found = [name for shard in shards for name, _ in deserialize(shard.read_bytes())]
    assert len(shards) == 3
    assert sorted(found) == sorted(tensors)
