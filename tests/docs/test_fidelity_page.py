"""docs/fidelity.md is up to date, and docs/fidelity.yaml has a row for everything with a publication."""

import runpy
from typing import Any

import pytest

from launcher.config import recipes
from launcher.config.groups import options
from launcher.config.layers import leaves
from launcher.config.recipes import Recipe
from launcher.config.yaml_file import read_mapping

from .pages import ROOT

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write_fidelity.py"))
TABLE: dict[str, dict[str, list[dict[str, Any]]]] = SCRIPT["table"]()
ROWS = [(name, row) for names in TABLE.values() for name, rows in names.items() for row in rows]


def test_the_page_is_current() -> None:
    current = (ROOT / "docs" / "fidelity.md").read_text()
    assert current == SCRIPT["page"](), "run: .venv/bin/python scripts/write_fidelity.py"


@pytest.mark.parametrize(
    ("section", "known"),
    [
        ("algorithms", options("algorithms")),
        ("optimizers", options("optimizer")),
        ("losses", options("loss")),
        ("schedules", options("schedule")),
        ("recipes", sorted(recipe.name for recipe in recipes.listing())),
    ],
)
def test_every_option_and_recipe_has_a_row(section: str, known: list[str]) -> None:
    assert sorted(TABLE[section]) == known
    assert all(TABLE[section].values())


def test_each_row_is_complete() -> None:
    complete = [{"same"}, {"published", "keys"}, {"differs", "why"}]
    assert [(name, row) for name, row in ROWS if {*row} not in complete or not all(row.values())] == []


def published(recipe: Recipe) -> list[str]:
    """Return the dotted keys of a recipe's published variant."""
    return [key for key, _ in leaves(read_mapping(recipe.published))] if recipe.published else []


def test_every_published_variant_has_a_row_and_every_row_a_variant() -> None:
    switched = {key for recipe in [*recipes.listing(), *recipes.ablations()] for key in published(recipe)}
    assert {key for _, row in ROWS for key in row.get("keys", [])} == switched


def test_each_recipe_with_a_published_variant_has_its_row() -> None:
    for recipe in recipes.listing():
        own = {key for key in published(recipe) if not key.startswith("algorithms.")}
        assert {key for row in TABLE["recipes"][recipe.name] for key in row.get("keys", [])} == own
