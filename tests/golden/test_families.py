"""Nothing that a new family needs is forgotten: recipes, configs, its row in the README."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from golden.recipes import RECIPES
from unit.family_configs import CLASSES, FAMILY_TENSORS, PUBLIC

from kestrel.models import FAMILIES

README = Path(__file__).parents[2] / "README.md"
#: A row of its table of families: model_type, class, number of recipes.
ROW = re.compile(r"^\| `(\w+)`[^|]*\|[^|]*\| `(\w+)` \| (\d+) \|", re.M)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_recipes_and_configs(family: str) -> None:
    configs = [recipe.config_json() for recipe in RECIPES.values()]
    assert sum(config["model_type"] == family for config in configs) >= 3, "tests/golden/recipes"
    assert family in CLASSES and family in FAMILY_TENSORS, "tests/unit/family_configs.py"
    assert any(config["model_type"] == family for config in PUBLIC.values()), "PUBLIC"


def test_the_readme_lists_every_family_and_its_recipes() -> None:
    configs = [recipe.config_json() for recipe in RECIPES.values()]
    recipes = Counter((config["model_type"], *config["architectures"]) for config in configs)
    rows = ROW.findall(README.read_text(encoding="utf-8"))
    assert sorted(rows) == sorted((*names, str(count)) for names, count in recipes.items())
    assert {family for family, *_ in rows} == set(FAMILIES)
