"""Comparisons that go across machines, model sizes and data sets, and what they say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.study.report import page_data
from lab.study.results import chosen_axis, read_results
from tests.commands import output_of, refused
from tests.made_runs import MakeRun, machine

MACHINES = {"slow": 1.0, "fast": 4.0, "free": None}


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    """`baseline` on three machines, to 60 %: 6 minutes at 1 USD an hour, 2 at 4, and 1 at no known price."""
    for (name, price), seconds in zip(MACHINES.items(), (180.0, 60.0, 30.0), strict=True):
        make_run(f"g/{name}", (0.5, 0.6), (seconds,) * 2, recipe="baseline", hardware=machine(name, price))
    make_run(
        "g/wide", (0.6, 0.8), (360.0,) * 2, recipe="baseline", hardware=machine("slow", 1.0), model={"name": "resnet50"}
    )
    return tmp_path / "g"


def compared(folder: Path, *words: str) -> dict[str, object]:
    answer: dict[str, object] = json.loads(output_of("compare", str(folder), *words, "--json"))
    values = {(c["curve"], c["baseline"]): c["value"] and c["value"]["value"] for c in answer["comparisons"]}  # type: ignore[attr-defined]
    fronts = {row["hardware"].split()[0] for row in answer["points"] if row[f"front_{answer['axis']}"]}  # type: ignore[attr-defined]
    return {"axis": answer["axis"], "values": values, "fronts": fronts, "notes": answer["notes"]}


def test_nothing_goes_across_unless_asked(folder: Path) -> None:
    found = compared(folder)
    assert (found["axis"], found["values"], found["notes"]) == ("time", {}, [])
    assert found["fronts"] == {"slow", "fast", "free"}


def test_across_machines_money_is_compared_and_the_priceless_named(folder: Path) -> None:
    """6 minutes at 1 USD an hour are 0.1 USD, 2 minutes at 4 are 0.133: the slow machine is the cheaper one."""
    found = compared(folder, "--across", "machines", "--quality", "60", "--baseline", "baseline on slow (1x cpu)")
    assert found["axis"] == "money"
    assert found["values"] == {("baseline, fast (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(0.75)}
    assert found["fronts"] == {"slow"}
    assert found["notes"] == [
        "compares across machines, with one front and one baseline",
        "no price for curves on free (1x cpu); skipped them in the comparisons",
    ]


def test_minutes_of_several_machines_are_compared_if_asked_and_said_to_be(folder: Path) -> None:
    words = ["--across", "machines", "--axis", "time", "--quality", "60", "--baseline", "baseline, slow (1x cpu)"]
    found = compared(folder, *words)
    assert found["values"] == {
        ("baseline, fast (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(3.0),
        ("baseline, free (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(6.0),
    }
    assert "a faster machine looks like a faster recipe" in str(found["notes"])


def test_across_models_one_front_holds_both_sizes(folder: Path) -> None:
    found = compared(folder, "--across", "models", "--cost", "6")
    assert found["axis"] == "time"
    assert ("baseline, resnet50", "baseline, resnet18") in found["values"]  # type: ignore[operator]
    rows = page_data(read_results([str(folder)], published=False, across=["models"]), "today")
    assert rows["across"] == ["model"]


def test_own_points_stand_beside_published_ones_of_other_sizes() -> None:
    answer = json.loads(
        output_of("compare", "--published", "--across", "machines,models", "--json", "--cost", "22.085")
    )
    settings = {(one["setting"]["model"], one["setting"]["hardware"]) for one in answer["comparisons"]}
    assert settings == {("all models", "all machines")}
    curves = {one["curve"] for one in answer["comparisons"]}
    assert {"Composer, early 2022, p4d.24xlarge, resnet101", "mild, BM.GPU4.8, resnet50"} <= curves
    assert not any("8x A100 80GB" in curve for curve in curves)


def test_currencies_are_not_mixed_in_silence(folder: Path, make_run: MakeRun) -> None:
    make_run("g/there", recipe="baseline", hardware={**machine("there", 1.0), "currency": "EUR"})
    found = compared(folder, "--across", "machines")
    assert "prices in EUR and USD are not converted" in found["notes"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "machine",
            "--across=machine: did you mean machines? one or more of machines, models, datasets, separated by commas",
        ),
        ("models,,", "--across='': one or more of machines, models, datasets, separated by commas"),
        ("", "--across='': one or more of machines, models, datasets, separated by commas"),
    ],
)
def test_what_cannot_be_gone_across(words: str, told: str) -> None:
    for verb in (["compare", "--published"], ["report", "runs", "-o", "r.html"]):
        assert told in refused(*verb, "--across", words)


def test_the_axis_asked_for_wins() -> None:
    cases = ((None, ()), (None, ["machines"]), ("wall", ["machines"]))
    assert [chosen_axis(asked, across) for asked, across in cases] == ["time", "money", "wall"]
