"""Tiny checkpoints with a tokenizer of whole words: ``t0`` is id 0, ``t1`` id 1, and so on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from checkpoints import tiny_llama_config, tiny_llama_tensors, write_checkpoint

__all__ = ["write_tiny"]


def write_tiny(
    folder: Path,
    change: Callable[[dict[str, np.ndarray]], object] | None = None,
    texts: int | None = None,
    dtype: str = "F32",
    **config: object,
) -> Path:
    """Write a model of two layers and return its folder.

    Args:
        change: called with the tensors before they are written.
        texts: tokens of the tokenizer; None: as many as the model has logits.
        config: keys of config.json that differ from `tiny_llama_config`.
    """
    full = tiny_llama_config(eos_token_id=None, bos_token_id=None, **config)
    tensors = tiny_llama_tensors(full, seed=7)
    if change is not None:
        change(tensors)
    words = {f"t{token}": token for token in range(texts or full["vocab_size"])}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    return write_checkpoint(folder, full, tensors, dtype, tokenizer=tokenizer)
