"""Every value that each recipe resolves to, also as published, at other lengths and with other options.

`resolved.json` holds one command line a row: its values as those of an earlier row, `but` for some, `without` others.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping

ROWS = json.loads(Path(__file__).with_name("resolved.json").read_text())


def expected() -> dict[str, dict[str, Any]]:
    """Return the values by dotted key of each command line."""
    lines: dict[str, dict[str, Any]] = {}
    for row in ROWS:
        values = {**lines.get(row.get("as"), {}), **row.get("values", {}), **row.get("but", {})}
        lines[row["words"]] = {key: value for key, value in values.items() if key not in row.get("without", ())}
    return lines


EXPECTED = expected()


@pytest.mark.parametrize("line", EXPECTED)
def test_each_key_has_its_value(line: str) -> None:
    values = dict(leaves(as_mapping(compose(line.split()).config)))
    assert json.loads(json.dumps(values)) == EXPECTED[line]


def test_every_recipe_has_a_row() -> None:
    assert {f"recipe={name} dataset.path=/data" for name in recipes.names()} <= EXPECTED.keys()
