#!/usr/bin/env python3
"""Print the figures of the README's table of families: how far logits are from transformers'.

    python tests/golden/family_table.py

For each family, over its recipes and on the widest instruction set of this machine: the class that
made the golden files, the largest difference of a logit, absolute and beside the largest logit of
its recipe, and beside its bound (what kestrel/diff.py allows at that element).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Print the table's rows."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    from golden.engines import ISAS, Engine, trace_of
    from golden.recipes import RECIPES, data_file

    from kestrel.diff import compare
    from kestrel.dump import Dump
    from kestrel.stages import stages_of

    families: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for recipe in RECIPES.values():
        dump = Dump.read(data_file(recipe.name))
        with tempfile.TemporaryDirectory() as folder:
            with Engine("cpu", ISAS[-1]).load(recipe.write(Path(folder))) as model:
                trace = trace_of(model, recipe)
        stages, start = stages_of(recipe.geometry()), recipe.rotated_from
        *_, row = compare(
            stages, recipe.weights(), dump.ids, trace, dump.stages, decode_from=start
        )
        config = recipe.config_json()
        key = config["model_type"], config["architectures"][0]
        largest = float(abs(dump.stages[row.stage]).max())
        figures = (row.max_abs, row.max_abs / largest, row.max_abs / row.bound)
        families.setdefault(key, []).append(figures)
    print("| family | class | recipes | largest error | of the largest logit | of its bound |")
    print("|---|---|---|---|---|---|")
    for (family, name), rows in families.items():
        error, relative, share = (max(column) for column in zip(*rows))
        print(
            f"| `{family}` | `{name}` | {len(rows)} | {error:.1e} | {relative:.1e} | {share:.2f} |"
        )


if __name__ == "__main__":
    main()
