"""Synthetic checkpoints: the shapes of known models with random weights, written quickly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from checkpoints import encode  # tests/checkpoints.py

from kestrel.cache.paged_cache import bytes_per_token

if TYPE_CHECKING:
    from kestrel.model import Model
    from kestrel.models.config import DecoderConfig

__all__ = ["SHAPES", "prompt", "step_flops", "tensor_shapes", "touch_cache", "write_model"]

_COMMON = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def _shape(hidden, layers, heads, kv_heads, head_dim, mlp, vocab, context, theta) -> dict:
    return _COMMON | {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rope_theta": theta,
    }


#: Name -> config.json: stories15M (with a longer context), SmolLM2-135M, Llama-3.2-1B, and the last
#: with 4 layers, whose BF16 file has 1 GB.
SHAPES = {
    "15M": _shape(288, 6, 6, 6, 48, 768, 32_000, 1024, 10_000.0),
    "135M": _shape(576, 30, 9, 3, 64, 1536, 49_152, 2048, 100_000.0),
    "1B": _shape(2048, 16, 32, 8, 64, 8192, 128_256, 4096, 500_000.0),
    "1GB": _shape(2048, 4, 32, 8, 64, 8192, 128_256, 4096, 500_000.0),
}

#: A prime, so that rows of the same tensor, cut from the repeated block, do not repeat.
_BLOCK = 4_194_301
_SEED = 20_240_817


def touch_cache(model: "Model", tokens: int = 8192) -> None:
    """Write to a new KV cache where its first tokens will be, as a program has done that runs for a
    while: on a virtual machine the first use of 2 MiB can take as long as a short prompt."""
    for layer in range(model.config.num_layers):
        value = model.cache.layer(layer)
        nbytes = tokens * bytes_per_token(model.config, value.dtype) // model.config.num_layers
        np.frombuffer(value.source, np.uint8)[:nbytes] = 0


def tensor_shapes(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Hugging Face names and shapes of a tied Llama checkpoint."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    q_width = config["num_attention_heads"] * config["head_dim"]
    kv_width = config["num_key_value_heads"] * config["head_dim"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (q_width, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv_width, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, q_width)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)


def step_flops(config: DecoderConfig, tokens: int, first: int = 0, logit_rows: int = 1) -> float:
    """Operations, two a multiply-add, of the matrices and of attention for ``tokens`` tokens.

    ``first`` is the position of the first of them; the token at position p attends to p + 1.
    """
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    before = config.hidden_size * (q_width + 2 * kv_width)  # the attention of a layer
    behind = config.hidden_size * (q_width + 3 * config.intermediate_size)
    matrices = config.num_layers * before + (config.num_layers - 1) * behind
    attended = tokens * first + tokens * (tokens + 1) / 2
    attention = config.num_layers * 2 * q_width * attended
    head = config.vocab_size * config.hidden_size + behind  # and what leads to it
    return 2.0 * (matrices * tokens + head * logit_rows + attention)


def prompt(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Random ids without the first ten; equal seeds begin alike."""
    rng = np.random.default_rng((_SEED, seed))
    return rng.integers(10, vocab_size, length).tolist()


def write_model(folder: Path, name: str, dtype: str) -> Path:
    """Write a checkpoint of ``SHAPES[name]`` in F32, F16 or BF16; returns its folder.

    Matrices have variance 1 / in_features, so that activations keep a real model's size; the 1B
    shape takes the time of writing its 2.5 GB.
    """
    config, folder = SHAPES[name], Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "tokenizer.json").write_text(_tokenizer_json(config["vocab_size"]), encoding="utf-8")
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for tensor, shape in tensor_shapes(config):
        end = position + prod(shape) * size
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for index, (_, shape) in enumerate(tensor_shapes(config)):
            if len(shape) == 1:
                file.write(encode(np.ones(shape, np.float32), dtype))
            else:
                _write_tiled(file, _block(shape[1], dtype), index, prod(shape) * size, size)
    return folder


def _write_tiled(file, block: memoryview, index: int, nbytes: int, size: int) -> None:
    # Each tensor begins elsewhere in the block, so that no two layers are the same.
    at = index * 7919 % _BLOCK * size
    while nbytes:
        part = block[at : at + nbytes]
        file.write(part)
        nbytes -= len(part)
        at = 0


@lru_cache(maxsize=8)
def _block(in_features: int, dtype: str) -> memoryview:
    values = _normal() / np.float32(np.sqrt(in_features))
    return memoryview(encode(values, dtype))


@lru_cache(maxsize=1)
def _normal() -> np.ndarray:
    return np.random.default_rng(_SEED).standard_normal(_BLOCK, dtype=np.float32)


def _tokenizer_json(vocab_size: int) -> str:
    """A byte-level BPE tokenizer without merges: each id has text, so each may be drawn."""
    from tokenizers import pre_tokenizers

    tokens = ["<|bos|>", "<|eos|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += [f"t{i}" for i in range(len(tokens), vocab_size)]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {"id": i, "content": tokens[i], "special": True, **added} for i in range(2)
            ],
            "normalizer": None,
            "pre_tokenizer": byte_level | {"use_regex": True},
            "post_processor": None,
            "decoder": byte_level | {"use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [],
            },
        }
    )
