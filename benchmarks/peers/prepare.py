"""The files that the sides read: random or given checkpoints, widened, and the same as GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from checkpoints import write_checkpoint  # tests/checkpoints.py
from models import SHAPES, write_model

from kestrel.checkpoint.checkpoint import Checkpoint

__all__ = ["Unsupported", "model_folder", "write_gguf"]

_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


class Unsupported(Exception):
    """A peer cannot take part, and why."""


def model_folder(model: str, dtype: str, scratch: Path) -> Path:
    """The folder of a checkpoint with weights of ``dtype``.

    ``model`` is a name of models.SHAPES, which gets random weights, or a folder; F32 of a folder
    with other weights holds the same values, widened. Raises Unsupported where they would have to
    be rounded.
    """
    if model in SHAPES:
        return write_model(scratch / f"{model}-{dtype}", model, dtype)
    folder = Path(model)
    checkpoint = Checkpoint(folder)
    found = {view.dtype.value for view in checkpoint.tensors.values()}
    if found == {dtype}:
        return folder
    if dtype != "F32":
        raise Unsupported(f"{model}: expected {dtype} weights, found {', '.join(sorted(found))}")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    tensors = {name: view.to_numpy_f32() for name, view in checkpoint.tensors.items()}
    target = scratch / f"{folder.name}-F32"
    return write_checkpoint(target, config, tensors, "F32", tokenizer=folder)


def write_gguf(folder: Path, dtype: str, target: Path) -> Path:
    """Write a Llama checkpoint as llama.cpp reads it, without a tokenizer; gives ``target``.

    Raises Unsupported without the gguf package, for another family and for scaled RoPE.
    """
    try:
        import gguf
    except ImportError as error:
        raise Unsupported(f"the file for it needs the gguf package ({error})") from error
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if config["model_type"] != "llama" or rope.get("rope_type", "default") != "default":
        raise Unsupported("the conversion knows the family llama with plain RoPE alone")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    kv_heads, head_dim = config["num_key_value_heads"], config.get("head_dim", hidden // heads)
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta")))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    kind = gguf.GGMLQuantizationType[dtype]
    for name, view in Checkpoint(folder).tensors.items():
        values = view.to_numpy_f32()
        if name.endswith("q_proj.weight"):
            values = _adjacent_pairs(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _adjacent_pairs(values, kv_heads)
        if values.ndim == 1 or dtype == "F32":
            writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values))
        else:  # exact: the values came from this type
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _ENDS:
        return f"{_ENDS[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.weight"


def _adjacent_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows [out, in] with the two halves of each head interleaved, as llama.cpp rotates them."""
    out, width = weight.shape
    halves = weight.reshape(heads, 2, out // heads // 2, width)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(out, width)
