"""docs/keys.md is what the schema and conf/ say now."""

from __future__ import annotations

import runpy
from pathlib import Path

from launcher.config.keys import all_keys

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    written = runpy.run_path(str(ROOT / "scripts" / "write_keys.py"))["page"]()
    current = (ROOT / "docs" / "keys.md").read_text()
    assert current == written, "run: .venv/bin/python scripts/write_keys.py"


def test_it_leaves_no_key_out() -> None:
    text = (ROOT / "docs" / "keys.md").read_text()
    mappings = {key.rpartition(".")[0] for key in all_keys()}
    leaves = [key for key in all_keys() if key not in mappings and not key.endswith(".name")]
    without_values = [key for key in leaves if key.startswith("algorithms.") and key.count(".") == 1]
    for key in leaves:
        expected = f"### {key.removeprefix('algorithms.')}" if key in without_values else f"| `{key}` |"
        assert expected in text, key
