"""Write small, valid checkpoints from NumPy arrays, for every test suite.

The writer is independent of the package under test; tests/unit/test_checkpoint_writer.py holds it
against the safetensors package and torch's rounding.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

INDEX_NAME = "model.safetensors.index.json"


def tiny_llama_config(**overrides: object) -> dict[str, object]:
    """A config.json of two Llama layers, some 20,000 parameters; ``None`` removes a key."""
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
        **overrides,
    }
    return {key: value for key, value in config.items() if value is not None}


def tiny_llama_tensors(config: dict, seed: int) -> dict[str, np.ndarray]:
    """Random float32 weights for a Llama config, under their Hugging Face names.

    Matrices [out, in] are normal with variance 1 / in, norms near 1, biases near 0: activations
    keep the size of a real model's.
    """
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    q_width, kv_width = heads * head_dim, config.get("num_key_value_heads", heads) * head_dim
    tensors: dict[str, np.ndarray] = {}

    def matrix(name: str, out: int, width: int, bias: bool = False) -> None:
        values = rng.standard_normal((out, width)) / np.sqrt(width)
        tensors[f"{name}.weight"] = values.astype(np.float32)
        if bias:
            tensors[f"{name}.bias"] = (0.1 * rng.standard_normal(out)).astype(np.float32)

    def norm(name: str) -> None:
        values = 1 + 0.1 * rng.standard_normal(hidden)
        tensors[f"{name}.weight"] = values.astype(np.float32)

    matrix("model.embed_tokens", config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        norm(f"{layer}.input_layernorm")
        bias = bool(config.get("attention_bias"))
        matrix(f"{layer}.self_attn.q_proj", q_width, hidden, bias)
        matrix(f"{layer}.self_attn.k_proj", kv_width, hidden, bias)
        matrix(f"{layer}.self_attn.v_proj", kv_width, hidden, bias)
        matrix(f"{layer}.self_attn.o_proj", hidden, q_width, bias)
        norm(f"{layer}.post_attention_layernorm")
        bias = bool(config.get("mlp_bias"))
        matrix(f"{layer}.mlp.gate_proj", inner, hidden, bias)
        matrix(f"{layer}.mlp.up_proj", inner, hidden, bias)
        matrix(f"{layer}.mlp.down_proj", hidden, inner, bias)
    norm("model.norm")
    if not config.get("tie_word_embeddings"):
        matrix("lm_head", config["vocab_size"], hidden)
    return tensors


def encode(values: np.ndarray, dtype: str) -> bytes:
    """Little-endian bytes of float32 values as F32, F16 or BF16, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    if dtype == "BF16":
        bits = values.view(np.uint32)
        # Adding just under half of the dropped part, plus the bit that decides a tie.
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = (bits >> 16) | 0x40
        return np.where(np.isnan(values), quiet, rounded).astype("<u2").tobytes()
    raise ValueError(f"dtype {dtype!r}: expected F32, F16 or BF16")


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """The float32 values that a checkpoint of this dtype holds."""
    data = encode(values, dtype)
    if dtype == "BF16":
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(values.shape)
    kind = {"F32": "<f4", "F16": "<f2"}[dtype]
    return np.frombuffer(data, kind).astype(np.float32).reshape(values.shape)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> int:
    """Write one file, tensors in the given order. Returns the bytes of its tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blobs, position = [], 0
    for name, values in tensors.items():
        blob = encode(values, dtype)
        offsets = [position, position + len(blob)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        blobs.append(blob)
        position += len(blob)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(blobs))
    return position


def write_checkpoint(
    folder: Path,
    config: dict[str, object],
    tensors: dict[str, np.ndarray],
    dtype: str = "BF16",
    shards: int = 1,
    generation_config: dict[str, object] | None = None,
    tokenizer: dict | Path | None = None,
) -> Path:
    """Write a Hugging Face model folder and return its path.

    Args:
        folder: made when absent.
        config: contents of config.json.
        tensors: float32 arrays by name.
        dtype: F32, F16 or BF16, for every tensor.
        shards: 1 writes model.safetensors; more deal the tensors out over shards with an index.
        generation_config: contents of generation_config.json, when given.
        tokenizer: contents of tokenizer.json, or a folder whose tokenizer files are copied.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", config)
    if generation_config is not None:
        _write_json(folder / "generation_config.json", generation_config)
    if isinstance(tokenizer, dict):
        _write_json(folder / "tokenizer.json", tokenizer)
    elif tokenizer is not None:
        for source in sorted(Path(tokenizer).glob("tokenizer*.json")):
            shutil.copyfile(source, folder / source.name)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    names, weight_map, total = list(tensors), {}, 0
    for number in range(shards):
        shard = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        total += write_safetensors(folder / shard, {n: tensors[n] for n in part}, dtype)
        weight_map.update(dict.fromkeys(part, shard))
    _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return folder


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
