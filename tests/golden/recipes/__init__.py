"""The golden recipes: tiny random checkpoints of every family, chosen to hit its borders."""

from __future__ import annotations

from golden.recipes import (
    gemma,
    gemma2,
    gemma3_text,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from golden.recipes.base import FAR_POSITIONS, Recipe, data_file, far_tables

__all__ = ["FAR_POSITIONS", "RECIPES", "Recipe", "data_file", "far_tables"]

_MODULES = (
    llama, mistral, qwen2, qwen3, smollm3, phi3, gemma, gemma2, gemma3_text, olmo2, granite,
)  # fmt: skip


#: Name -> recipe, of all families.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for module in _MODULES for recipe in module.RECIPES
}
