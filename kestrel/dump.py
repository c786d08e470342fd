"""Reference dumps: what another implementation computed at each stage, in a safetensors file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from kestrel.errors import CheckpointError, HeaderError

__all__ = ["FORMAT", "Dump"]

#: What a dump is called in its metadata; tools/dump_reference.py writes it.
FORMAT = "kestrel-reference-dump"
#: Stages of the float64 run stand under this prefix.
FLOAT64 = "float64/"


@dataclass(frozen=True)
class Dump:
    """A reference's stages for some ids, as tools/dump_reference.py records them.

    Attributes:
        ids: the token ids.
        stages: Hugging Face name -> float32 [N, width].
        float64: the same from a run in float64; empty when there was none.
        metadata: of the file; ``versions`` in it names what made the numbers, as JSON.
    """

    ids: list[int]
    stages: Mapping[str, np.ndarray]
    float64: Mapping[str, np.ndarray] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Dump":
        """The dump in a file. Raises CheckpointError when there is none, HeaderError when it is
        something else."""
        from safetensors import SafetensorError, safe_open

        path = os.fspath(path)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file", path) from None
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise HeaderError(
                f"{path}: expected a safetensors file made by tools/dump_reference.py, found one "
                f"that does not open: {error}",
                path,
            ) from None
        if metadata.get("format") != FORMAT or "token_ids" not in tensors:
            raise HeaderError(
                f"{path}: expected a reference dump (format {FORMAT!r} in its metadata, and "
                f"token_ids), found format {metadata.get('format')!r}: make one with "
                "tools/dump_reference.py",
                path,
            )
        ids = [int(token) for token in tensors.pop("token_ids")]
        float64 = {
            name.removeprefix(FLOAT64): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(FLOAT64)
        }
        return cls(ids, tensors, float64, metadata)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of what made the dump: torch, transformers and others."""
        return json.loads(self.metadata.get("versions", "{}"))
