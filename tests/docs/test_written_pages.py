"""The table of README is current, the rows of fidelity are complete, and all pages make a site."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher import paths
from launcher.config import recipes
from launcher.config.groups import options
from launcher.config.keys import all_keys
from launcher.config.layers import leaves
from launcher.config.recipes import Recipe
from launcher.config.yaml_file import read_mapping
from tests.commands import output_of

from .pages import ROOT


def test_the_table_of_recipes_is_current() -> None:
    text = (ROOT / "README.md").read_text()
    written = runpy.run_path(str(ROOT / "scripts" / "write_recipes.py"))["written"]
    assert written(text) == text, "run: .venv/bin/python scripts/write_recipes.py"


def test_the_command_and_the_images_of_the_first_run_are_those_of_the_script() -> None:
    demo = runpy.run_path(str(ROOT / "scripts" / "write_demo.py"))
    for page in ("README.md", "docs/first_run.md"):
        assert f"train {shlex.join(demo['command']())}\n" in (ROOT / page).read_text()
    shown = re.findall(r"^!\[[^\]]+\]\((\S+)\)$", (ROOT / "docs" / "first_run.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(demo["IMAGES"])
    assert all((ROOT / "docs" / name).is_file() for name in shown)
    assert demo["words_of"]("eval", "runs/a") == ["eval", "runs/a", "--by-class"]


def test_the_bound_on_the_page_is_the_output_of_compare() -> None:
    shown = {
        " ".join(line.split()) for line in output_of("compare", "--published", "--baseline", "timm_a2").splitlines()
    }
    (row,) = re.findall(r"^(hot    timm_a2.*)$", (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)
    assert " ".join(row.split()) in shown


TABLE: dict[str, dict[str, list[dict[str, Any]]]] = yaml.safe_load((ROOT / "docs" / "fidelity.yaml").read_text())
ROWS = [(name, row) for names in TABLE.values() for name, rows in names.items() for row in rows]


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


@pytest.mark.parametrize("cluster", ["slurm", "sky", "kubernetes"])
def test_every_key_of_a_job_is_on_the_cloud_page(cluster: str) -> None:
    text = (ROOT / "docs" / "cloud.md").read_text()
    keys = read_mapping(paths.CONF / "submit" / f"{cluster}.yaml")
    assert len(keys) > 5
    assert [key for key in keys if f"submit.{key}" not in text] == []


def names(part: object) -> list[str]:
    if isinstance(part, str):
        return [part]
    inner = part.values() if isinstance(part, dict) else part
    return [page for below in inner for page in names(below)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_navigation_and_the_index() -> None:
    listed = names(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    files = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert sorted(listed) == sorted([*files, "keys.md", "fidelity.md"])
    index = (ROOT / "docs" / "index.md").read_text()
    assert [name for name in files if name != "index.md" and f"]({name})" not in index] == []


def test_mkdocs_builds_the_site_with_every_key_and_comparison(tmp_path: Path) -> None:
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = (tmp_path / "fidelity" / "index.html").read_text()
    assert compared.count("<tr>") == len(ROWS) + len(TABLE)
    pages = runpy.run_path(str(ROOT / "scripts" / "built_pages.py"))["pages"]()
    assert re.findall(r"^\| `[\w.]+` \|.*\|  \|$", pages["keys.md"], re.MULTILINE) == [], "keys without a description"
    mappings = {key.rpartition(".")[0] for key in all_keys()}
    for key in all_keys():
        name = key.removeprefix("algorithms.")
        without_values = name != key and "." not in name
        if key not in mappings and not key.endswith(".name"):
            assert (f"### {name}" if without_values else f"| `{key}` |") in pages["keys.md"], key
