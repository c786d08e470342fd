#!/usr/bin/env python3
"""Make the golden files: what transformers computes for every recipe, at every stage.

    python tests/golden/make_golden.py [NAME ...]

Needs torch and transformers at the versions that pyproject.toml pins. Each file holds the ids, all
stages in float32, the logits of the same code in float64, the rotary tables at the positions of
`recipes.FAR_POSITIONS` under far/, and in its metadata the versions and the checkpoint's digest.
The files ``six-*`` hold the logits [6, V] of the six-token protocol on a real model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
#: The protocol's models: their weights are not in the file's digest, their files' bytes are.
SIX_TOKEN_MODELS = {
    "tales-5m": ROOT / "kestrel" / "data" / "tales-5m",
    "stories260K": ROOT.parent / "shared" / "models" / "stories260K",
}


def recorder() -> ModuleType:
    """tools/dump_reference.py as a module."""
    path = ROOT / "tools" / "dump_reference.py"
    spec = importlib.util.spec_from_file_location("dump_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_generate(start: int | None) -> Callable[..., None] | None:
    """The calls that ``generate`` makes for a prompt of ``start`` ids, the others being drawn; None
    where all ids come in one.

    The class may drop the cache, so that the next call computes all rows anew: they stand in the
    place of those that were there.
    """
    import torch

    def run(model: torch.nn.Module, ids: list[int], forget: Callable[[], None]) -> None:
        cache = None
        for end in range(start, len(ids) + 1):
            inputs = model.prepare_inputs_for_generation(
                torch.tensor([ids[:end]]),
                next_sequence_length=None if cache is None else 1,
                cache=cache,
                position_ids=torch.arange(end)[None],
                use_cache=True,
            )
            if "cache" not in inputs:
                forget()
            cache = model(**inputs).cache

    return None if start is None else run


def live(recipe, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What a golden file holds, computed now from a checkpoint in ``folder``; and every stage of
    the float64 run, of which it holds the last."""
    import torch
    from golden.recipes import FAR_POSITIONS

    tool = recorder()
    torch.set_num_threads(1)
    recipe.write(folder)
    ids, run = recipe.ids(), as_generate(recipe.decode_from)
    model = tool.load(folder)
    stages = tool.record(model, ids, run=run)
    rotary = model.model.rotary_emb
    positions = torch.tensor([list(FAR_POSITIONS)])
    for kind in getattr(rotary, "layer_types", [None]):
        name = tool.rotary_name(model.config, kind)
        with torch.no_grad():
            tables = rotary(torch.zeros(1), positions, *([] if kind is None else [kind]))
        for part, tensor in zip(("cos", "sin"), tables if name else ()):
            half = tensor.shape[-1] // 2
            stages[f"far/{name}.{part}"] = tensor[0, :, :half].numpy().copy()
    double = tool.record(tool.load(folder), ids, double=True, run=run)
    last = "logits" if "logits" in double else "lm_head"
    stages[f"float64/{last}"] = double[last]
    return stages, double


def file_digest(folder: Path) -> str:
    """sha256 over the bytes of a model folder's config and weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def main(names: list[str]) -> None:
    """Write the named golden files, or all."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from golden.model_readme import six_token_ids
    from golden.recipes import RECIPES, data_file

    tool = recorder()
    for name, recipe in RECIPES.items():
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            stages, _ = live(recipe, Path(folder))
        tool.save(data_file(name), recipe.ids(), stages, {"digest": recipe.digest()})
        print(name, data_file(name).stat().st_size)
    for name, folder in SIX_TOKEN_MODELS.items():
        if names and f"six-{name}" not in names:
            continue
        ids = six_token_ids(folder)
        logits = tool.record(tool.load(folder), ids)["lm_head"]
        path = data_file(f"six-{name}")
        tool.save(path, ids, {"lm_head": logits}, {"digest": file_digest(folder)})
        print(path.stem, path.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
