"""Each statement of docs/security.md has a test, and the test exists."""

import re

import pytest

from .pages import ROOT

ROWS = [
    line for line in (ROOT / "docs" / "security.md").read_text().splitlines()
    if line.startswith("| ") and line != "| statement | test |"
]  # fmt: skip
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_the_page_has_statements() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS)
def test_a_statement_has_tests_that_exist(row: str) -> None:
    _, _, cell, _ = row.split("|")
    tests = [*map(_TEST.fullmatch, cell.strip().split(", "))]
    for test in tests:
        assert test, f"{cell} names no test"
        assert re.search(rf"^def {test[2]}\(", (ROOT / test[1]).read_text(), re.MULTILINE), test[0]
