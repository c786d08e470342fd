"""The golden recipes: tiny random checkpoints of every family, chosen to hit its borders."""

from __future__ import annotations

from golden.recipes import (
    gemma,
    gemma2,
    gemma3,
    granite,
    llama,
    mistral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from kestrel.models import FAMILIES
from kestrel.models.rope_config import ROPE_TYPES
from golden.recipes.base import FAR_POSITIONS, Recipe, data_file, far_tables

__all__ = ["FAR_POSITIONS", "RECIPES", "Recipe", "data_file", "far_tables"]

_MODULES = (
    llama, mistral, qwen2, qwen3, smollm3, phi3, gemma, gemma2, gemma3, olmo2, granite,
)  # fmt: skip



def _has_landed(recipe: Recipe) -> bool:
    # Families and RoPE types come one by one; each brings its recipes.
    types = {rope["rope_type"] for rope in recipe.geometry().ropes.values()}
    return recipe.config_json()["model_type"] in FAMILIES and types <= set(ROPE_TYPES)


#: Name -> recipe, of all families.
RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for module in _MODULES
    for recipe in module.RECIPES
    if _has_landed(recipe)
}
