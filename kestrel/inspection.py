"""What Kestrel understands of a model folder, as plain data; `kestrel inspect` prints it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from kestrel.cache.paged_cache import KV_DTYPES, bytes_per_token
from kestrel.checkpoint import Checkpoint
from kestrel.errors import TokenizerError
from kestrel.generation import GenerationSettings, read_generation
from kestrel.hub import Snapshot
from kestrel.models import understand
from kestrel.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from kestrel.models.config import DecoderConfig
    from kestrel.models.weights import DecoderWeights
    from kestrel.text.prompt_tokens import PromptToken

__all__ = ["Prompt", "inspect_folder"]

Prompt = Callable[[Tokenizer], "list[PromptToken]"]


def inspect_folder(
    folder: str | os.PathLike[str], mmap: bool = True, prompt: Prompt | None = None
) -> dict[str, object]:
    """Read, check and bind a model folder, and say what was understood; ready for JSON.

    Args:
        prompt: gives the tokens of a prompt that are to be shown too.

    A tokenizer that cannot be used becomes a note, since the rest is worth seeing without it, but
    for a prompt. Raises CheckpointError and ConfigError as ``kestrel.load`` does.
    """
    checkpoint = Checkpoint(folder, mmap=mmap)
    config, weights, notes = understand(checkpoint)
    snapshot = Snapshot.of(checkpoint.folder)
    notes = notes if snapshot is None else [*snapshot.notes(), *notes]
    try:
        tokenizer = Tokenizer.from_folder(checkpoint.folder)
    except TokenizerError as error:
        if prompt is not None:
            raise
        tokenizer = None
        notes.append(f"the tokenizer cannot be used: {error}")
    generation = read_generation(checkpoint, tokenizer)
    notes += generation.notes
    return {
        "folder": str(checkpoint.folder),
        "hub": None if snapshot is None else _hub(snapshot),
        "model_type": config.model_type,
        "config": [
            {"name": name, "value": _plain(value), "source": source}
            for name, value, source in config.described()
        ],
        **_sizes(weights, config),
        "files": [_file(path) for path in checkpoint.files],
        "tokenizer": None if tokenizer is None else _tokenizer(tokenizer, config, notes),
        "generation": _generation(generation, tokenizer),
        "prompt": None if prompt is None else [asdict(token) for token in prompt(tokenizer)],
        "notes": notes,
    }


def _hub(snapshot: Snapshot) -> dict[str, object]:
    return {"id": snapshot.repo, "commit": snapshot.commit, "revisions": snapshot.refs}


def _sizes(weights: "DecoderWeights", config: "DecoderConfig") -> dict[str, object]:
    """Parameters and bytes of the tensors in use (a tied head counts once), and of the cache."""
    by_dtype: dict[str, dict[str, int]] = {}
    parameters = 0
    counted: set[str] = set()
    for view in weights.tensors():
        row = by_dtype.setdefault(view.dtype.value, {"tensors": 0, "bytes": 0})
        stored = view.name.partition("[")[0]  # a part of a fused projection is named name[0:40]
        row["tensors"] += stored not in counted
        counted.add(stored)
        row["bytes"] += view.nbytes
        parameters += math.prod(view.shape)
    return {
        "parameters": parameters,
        "weights": by_dtype,
        "kv_cache_bytes_per_token": {
            name: bytes_per_token(config, dtype) for name, dtype in KV_DTYPES.items()
        },
    }


def _file(path: "Path") -> dict[str, object]:
    return {"name": path.name, "bytes": path.stat().st_size}


def _tokenizer(
    tokenizer: Tokenizer, config: "DecoderConfig", notes: list[str]
) -> dict[str, object]:
    """The tokenizer's own description, its warnings moved to the notes."""
    facts = tokenizer.describe()
    notes += facts.pop("warnings")
    rows = config.vocab_size
    nameless = len(tokenizer.ids_without_text(rows))
    if nameless:
        notes.append(
            f"{nameless} of the {rows} ids of the model (vocab_size) are no token of the "
            "tokenizer: they are never sampled"
        )
    beyond = tokenizer.vocab_size - (rows - nameless)
    if beyond:
        notes.append(
            f"{beyond} tokens of the tokenizer have ids above the model's {rows - 1}: a prompt "
            "that needs one is refused"
        )
    return facts


def _generation(
    settings: GenerationSettings, tokenizer: Tokenizer | None
) -> dict[str, object]:
    """Sampling defaults and end tokens, each with where it comes from."""
    return {
        "defaults": [
            {"name": name, "value": _plain(getattr(settings.defaults, name)), "source": source}
            for name, source in settings.sources.items()
        ],
        "end_tokens": [
            {"id": token_id, "token": tokenizer and tokenizer.token(token_id), "sources": places}
            for token_id, places in settings.end_ids.items()
        ],
    }


def _plain(value: object) -> object:
    """The value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
