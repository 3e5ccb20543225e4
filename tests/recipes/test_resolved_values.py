"""Every value that each recipe resolves to, also as published, at other lengths and with other options.

`resolved.json` holds one command line a row: its values as those of an earlier row, `but` for some, `without` others.
With TRAIN_TEST_WRITE=1 this test writes the values that its lines have now; a new line needs `words` alone, or `as`.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.config import recipes
from launcher.config.compose import compose
from launcher.config.layers import leaves
from launcher.config.resolved import as_mapping

PATH = Path(__file__).with_name("resolved.json")
ROWS = json.loads(PATH.read_text())


def values_of(line: str) -> dict[str, Any]:
    """Return the values of a command line by dotted key, as JSON has them."""
    return dict(json.loads(json.dumps(dict(leaves(as_mapping(compose(line.split()).config))), sort_keys=True)))


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the values of the lines of rows, each as what differs from the line that it names."""
    all_values, written = {row["words"]: values_of(row["words"]) for row in rows}, []
    for row in rows:
        values = all_values[row["words"]]
        if "as" not in row:
            written.append({"words": row["words"], "values": values})
            continue
        base = all_values[row["as"]]
        but = {key: value for key, value in values.items() if key not in base or value != base[key]}
        row = {"words": row["words"], "as": row["as"], "but": but, "without": sorted(base.keys() - values.keys())}
        written.append({name: part for name, part in row.items() if part or name in ("words", "as")})
    path.write_text("[\n" + ",\n".join(map(json.dumps, written)) + "\n]\n")


if "TRAIN_TEST_WRITE" in os.environ:
    write(ROWS, PATH)
    ROWS = json.loads(PATH.read_text())


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
    assert values_of(line) == EXPECTED[line]


def test_every_recipe_has_a_row() -> None:
    assert {f"recipe={name} dataset.path=/data" for name in recipes.names()} <= EXPECTED.keys()
