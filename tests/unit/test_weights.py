"""Binding tensors to their places: shapes, dtypes, tied heads."""

import json

import numpy as np
import pytest
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint
from unit.binding import LAYER_FILES, bind_all, write  # noqa: F401  write is a fixture

from kestrel.checkpoint import Checkpoint
from kestrel.dtypes import Dtype
from kestrel.errors import DtypeError, ShapeError, UnexpectedTensorError


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_finds_its_place(write, dtype, shards):
    config = tiny_llama_config(attention_bias=True, mlp_bias=True)
    checkpoint = write(config, dtype=dtype, shards=shards)
    weights, notes = bind_all(checkpoint)
    assert notes == []
    assert weights.embed_tokens is checkpoint.tensors["model.embed_tokens.weight"]
    assert weights.norm.weight is checkpoint.tensors["model.norm.weight"]
    assert weights.lm_head.weight is checkpoint.tensors["lm_head.weight"]
    assert weights.lm_head.bias is None
    for i, layer in enumerate(weights.layers):
        named = {
            "self_attn.q_proj": layer.q_proj,
            "self_attn.k_proj": layer.k_proj,
            "self_attn.v_proj": layer.v_proj,
            "self_attn.o_proj": layer.o_proj,
            "mlp.gate_proj": layer.gate_proj,
            "mlp.up_proj": layer.up_proj,
            "mlp.down_proj": layer.down_proj,
        }
        for module, linear in named.items():
            name = f"model.layers.{i}.{module}"
            assert linear.weight is checkpoint.tensors[f"{name}.weight"]
            assert linear.bias is checkpoint.tensors[f"{name}.bias"]
        prefix = f"model.layers.{i}"
        assert layer.input_norm.weight is checkpoint.tensors[f"{prefix}.input_layernorm.weight"]
        mlp_norm = checkpoint.tensors[f"{prefix}.post_attention_layernorm.weight"]
        assert layer.mlp_norm.weight is mlp_norm
    used = list(weights.tensors())
    assert sorted(view.name for view in used) == sorted(checkpoint.tensors)
    assert {view.dtype for view in used} == {Dtype(dtype)}


def test_head_dim_sets_the_width_of_the_projections(write):
    # S04: hidden 32, heads 4, head_dim 16, kv heads 2
    weights, _ = bind_all(write(tiny_llama_config(head_dim=16)))
    layer = weights.layers[0]
    assert layer.q_proj.weight.shape == (64, 32)
    assert layer.k_proj.weight.shape == (32, 32)
    assert layer.o_proj.weight.shape == (32, 64)


def test_a_tied_head_is_the_embedding(write):
    weights, notes = bind_all(write(tiny_llama_config(tie_word_embeddings=True)))
    assert weights.lm_head.weight is weights.embed_tokens and notes == []
    assert len(list(weights.tensors())) == LAYER_FILES - 1


def tied_with_head(head):
    config = tiny_llama_config(tie_word_embeddings=True)
    tensors = tiny_llama_tensors(config, 3)
    return config, {**tensors, "lm_head.weight": head(tensors["model.embed_tokens.weight"])}


def test_an_equal_tied_head_is_dropped_with_a_note(write):
    # S05
    config, tensors = tied_with_head(np.copy)
    weights, notes = bind_all(write(config, tensors))
    assert weights.lm_head.weight is weights.embed_tokens
    assert len(notes) == 1 and "lm_head.weight equals model.embed_tokens.weight" in notes[0]


def test_tied_heads_are_compared_to_the_last_byte(write):
    # More than one chunk of the comparison, and not a multiple of it.
    config = tiny_llama_config(tie_word_embeddings=True, vocab_size=9001, num_hidden_layers=1)
    tensors = tiny_llama_tensors(config, 3)
    head = tensors["model.embed_tokens.weight"].copy()
    head[-1, -1] *= 2
    checkpoint = write(config, {**tensors, "lm_head.weight": head}, dtype="F32")
    assert checkpoint.tensors["lm_head.weight"].nbytes > 1 << 20
    with pytest.raises(UnexpectedTensorError, match="other values"):
        bind_all(checkpoint)


@pytest.mark.parametrize(
    "head, found", [(np.negative, "other values"), (lambda e: e[:-1], r"BF16 \[63, 32\]")]
)
def test_an_unequal_tied_head_is_an_error(write, head, found):
    with pytest.raises(UnexpectedTensorError, match=found) as caught:
        bind_all(write(*tied_with_head(head)))
    message = str(caught.value)
    assert "'lm_head.weight'" in message and "tie_word_embeddings" in message


@pytest.mark.parametrize(
    "name, shape, parts",
    [
        (
            "model.layers.1.mlp.up_proj.weight",
            (48, 31),
            ["expected shape [48, 32] (intermediate_size × hidden_size in", "found [48, 31]"],
        ),
        ("model.layers.0.self_attn.k_proj.weight", (32, 32), ["[16, 32]", "num_key_value_heads"]),
        ("model.layers.0.self_attn.o_proj.weight", (32, 16), ["hidden_size × num_att"]),
        ("model.embed_tokens.weight", (65, 32), ["[64, 32]", "vocab_size × hidden_size"]),
        ("lm_head.weight", (64, 1, 32), ["[64, 32]", "[64, 1, 32]"]),
        ("model.norm.weight", (), ["[32]", "found []"]),
        ("model.norm.weight", (0,), ["found [0]", "never stored"]),
    ],
)
def test_shapes_are_checked(write, name, shape, parts):
    config = tiny_llama_config()
    tensors = {**tiny_llama_tensors(config, 3), name: np.ones(shape, np.float32)}
    checkpoint = write(config, tensors)
    with pytest.raises(ShapeError) as caught:
        bind_all(checkpoint)
    message = str(caught.value)
    assert message.startswith(f"{checkpoint.folder / 'model.safetensors'}: tensor {name!r}: ")
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("dtype", ["F8_E4M3", "U8", "I8"])
def test_dtypes_are_checked(tmp_path, dtype):
    # S13: FP8 weights without a word in config.json
    config = tiny_llama_config()
    tensors = tiny_llama_tensors(config, 3)
    name = "model.layers.1.self_attn.v_proj.weight"
    folder = write_checkpoint(tmp_path, config, tensors, "F32")
    retype(folder / "model.safetensors", name, dtype, tensors[name].size)
    with pytest.raises(DtypeError) as caught:
        bind_all(Checkpoint(folder))
    message = str(caught.value)
    assert repr(name) in message and f"found {dtype}" in message and "quantized" in message


def retype(path, name, dtype, nbytes):
    """Give one tensor of a file another dtype of one byte each, and drop its other bytes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:start]), data[start:]
    begin, end = header[name]["data_offsets"]
    header[name] |= {"dtype": dtype, "data_offsets": [begin, begin + nbytes]}
    for other, entry in header.items():
        if other != "__metadata__" and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [at - end + begin + nbytes for at in entry["data_offsets"]]
    raw = json.dumps(header).encode()
    body = body[: begin + nbytes] + body[end:]
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + body)


def test_an_integer_weight_is_refused_too(tmp_path):
    config = tiny_llama_config()
    folder = write_checkpoint(tmp_path, config, tiny_llama_tensors(config, 3), "F32")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"'))
    with pytest.raises(DtypeError, match="expected dtype F32 or F16 or BF16, found I32"):
        bind_all(Checkpoint(folder))


@pytest.mark.parametrize("name", ["tales-5m", "tales-15m", "stories260K", "stories260K-bf16"])
def test_real_checkpoints_bind(shared_models, name):
    checkpoint = Checkpoint(shared_models / name)
    weights, notes = bind_all(checkpoint)
    assert notes == []
    assert len(list(weights.tensors())) == len(checkpoint.tensors)
