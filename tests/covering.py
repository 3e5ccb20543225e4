"""What `make test` has of a sweep: recipes in which each algorithm, optimizer, loss, schedule and model is on once."""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

import pytest

from launcher.config import recipes
from launcher.config.recipes import Recipe

_GROUPS = ("optimizer", "loss", "schedule", "model")


@lru_cache
def covering() -> frozenset[str]:
    """Return the names of recipes, each chosen because it has the most that the ones before lack."""
    left = {recipe.name: _parts(recipe) for recipe in recipes.listing()}
    chosen: list[str] = []
    while best := max(left, key=lambda name: len(left[name]), default=None):
        if not (new := left.pop(best)):
            break
        chosen.append(best)
        left = {name: parts - new for name, parts in left.items()}
    return frozenset(chosen)


def _parts(recipe: Recipe) -> set[tuple[str, Any]]:
    algorithms = {("algorithms", name) for name in recipe.options.get("algorithms", [])}
    return algorithms | {(group, recipe.options.get(group)) for group in _GROUPS}


def sweep(rows: Iterable[Any], kept: Collection[Any] | None = None) -> list[Any]:
    """Return parameters, of which `make test` has those in the covering set of recipes, or in another one.

    Rows beside recipes and ablations are kept, unless the other set lacks them.
    """
    rows = list(rows)
    if kept is None:
        every = [recipe.name for recipe in (*recipes.listing(), *recipes.ablations())]
        kept = [row for row in rows if row not in every or row in covering()]
    marks = {True: (), False: pytest.mark.sweep}
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=marks[row in kept]) for row in rows]
