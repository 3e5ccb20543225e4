"""docs/keys.md, the tables of published figures and the results of the demo are up to date."""

import re
import runpy
import shlex

import pytest
import yaml

from launcher.config.keys import all_keys
from tests.commands import output_of

from .pages import ROOT

SCRIPTS = {name: runpy.run_path(str(ROOT / "scripts" / f"{name}.py")) for name in ("write_keys", "write_figures")}
FIGURES = SCRIPTS["write_figures"]


@pytest.mark.parametrize("name", FIGURES["PAGES"])
def test_the_figures_of_a_page_are_current(name: str) -> None:
    text = (ROOT / name).read_text()
    assert FIGURES["written"](text) == text, "run: .venv/bin/python scripts/write_figures.py"


def test_the_figures_of_the_demo_are_those_of_its_command() -> None:
    demo = runpy.run_path(str(ROOT / "scripts" / "write_demo.py"))
    results = yaml.safe_load(demo["VALUES"].read_text())
    assert [result["seed"] for result in results] == [*demo["SEEDS"]]
    for page in ("README.md", "docs/first_run.md"):
        assert f"train {shlex.join(demo['command']())}\n" in (ROOT / page).read_text()


def test_the_images_of_the_first_run_are_those_of_the_script() -> None:
    demo = runpy.run_path(str(ROOT / "scripts" / "write_demo.py"))
    shown = re.findall(r"^!\[[^\]]+\]\((\S+)\)$", (ROOT / "docs" / "first_run.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(demo["IMAGES"])
    assert all((ROOT / "docs" / name).is_file() for name in shown)
    words = demo["words_of"]("eval", "runs/a")
    assert words == ["eval", "runs/a", "--by-class"]


def test_the_example_of_a_report_has_the_page_and_the_published_points_of_today() -> None:
    example = runpy.run_path(str(ROOT / "scripts" / "write_example.py"))
    text = example["PAGE"].read_text()
    assert example["written"](text) == text, "run: .venv/bin/python scripts/write_example.py"
    assert f"]({example['IMAGE'].name})" in (ROOT / "docs" / "results.md").read_text()


def test_every_table_is_on_a_page() -> None:
    text = "".join((ROOT / name).read_text() for name in FIGURES["PAGES"])
    assert all(table in text for table in FIGURES["tables"]().values())


def test_the_bound_on_the_page_is_the_output_of_compare() -> None:
    shown = {
        " ".join(line.split()) for line in output_of("compare", "--published", "--baseline", "timm_a2").splitlines()
    }
    (row,) = re.findall(r"^(hot    timm_a2.*)$", (ROOT / "docs" / "results.md").read_text(), re.MULTILINE)
    assert " ".join(row.split()) in shown


def test_every_key_has_a_description() -> None:
    rows = [line for line in (ROOT / "docs" / "keys.md").read_text().splitlines() if re.match(r"\| `[\w.]+` \|", line)]
    assert len(rows) > 400
    assert [row for row in rows if row.endswith("|  |")] == []


def test_the_page_of_keys_is_current_and_complete() -> None:
    text = (ROOT / "docs" / "keys.md").read_text()
    assert text == SCRIPTS["write_keys"]["page"](), "run: .venv/bin/python scripts/write_keys.py"
    mappings = {key.rpartition(".")[0] for key in all_keys()}
    for key in all_keys():
        name = key.removeprefix("algorithms.")
        without_values = name != key and "." not in name
        if key not in mappings and not key.endswith(".name"):
            assert (f"### {name}" if without_values else f"| `{key}` |") in text, key
