"""Comparisons across machines, model sizes and data sets, and their notes."""

import json
from pathlib import Path

import pytest

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
    output: dict[str, object] = json.loads(output_of("compare", str(folder), *words, "--json"))
    values = {(c["curve"], c["baseline"]): c["value"] and c["value"]["value"] for c in output["comparisons"]}  # type: ignore[attr-defined]
    fronts = {row["hardware"].split()[0] for row in output["points"] if row[f"front_{output['axis']}"]}  # type: ignore[attr-defined]
    return {"axis": output["axis"], "values": values, "fronts": fronts, "notes": output["notes"]}


def test_comparisons_stay_within_a_setting_by_default(folder: Path) -> None:
    result = compared(folder)
    assert (result["axis"], result["values"], result["notes"]) == ("time", {}, [])
    assert result["fronts"] == {"slow", "fast", "free"}


def test_across_machines_money_is_compared_and_curves_without_a_price_are_listed(folder: Path) -> None:
    """6 minutes at 1 USD an hour are 0.1 USD, 2 minutes at 4 are 0.133: the slow machine is the cheaper one."""
    result = compared(folder, "--across", "machines", "--quality", "60", "--baseline", "baseline on slow (1x cpu)")
    assert result["axis"] == "money"
    assert result["values"] == {("baseline, fast (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(0.75)}
    assert result["fronts"] == {"slow"}
    assert result["notes"] == [
        "compares across machines, with one front and one baseline",
        "skipped the curves on free (1x cpu) in the comparisons: they have no price",
    ]


def test_minutes_of_several_machines_are_compared_on_request_with_a_note(folder: Path) -> None:
    words = ["--across", "machines", "--axis", "time", "--quality", "60", "--baseline", "baseline, slow (1x cpu)"]
    result = compared(folder, *words)
    assert result["values"] == {
        ("baseline, fast (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(3.0),
        ("baseline, free (1x cpu)", "baseline, slow (1x cpu)"): pytest.approx(6.0),
    }
    assert "a faster machine looks like a faster recipe" in str(result["notes"])


def test_across_models_one_front_has_both_models(folder: Path) -> None:
    result = compared(folder, "--across", "models", "--cost", "6")
    assert result["axis"] == "time"
    assert ("baseline, resnet50", "baseline, resnet18") in result["values"]  # type: ignore[operator]


def test_published_points_are_compared_across_machines_and_models() -> None:
    output = json.loads(
        output_of("compare", "--published", "--across", "machines,models", "--json", "--cost", "22.085")
    )
    settings = {(one["setting"]["model"], one["setting"]["hardware"]) for one in output["comparisons"]}
    assert settings == {("all models", "all machines")}
    curves = {one["curve"] for one in output["comparisons"]}
    assert {"Composer, early 2022, p4d.24xlarge, resnet101", "mild, BM.GPU4.8, resnet50"} <= curves
    assert not any("8x A100 80GB" in curve for curve in curves)


def test_several_currencies_give_a_note(folder: Path, make_run: MakeRun) -> None:
    make_run("g/there", recipe="baseline", hardware={**machine("there", 1.0), "currency": "EUR"})
    result = compared(folder, "--across", "machines")
    assert "prices in EUR and USD are not converted" in result["notes"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("machine", "--across=machine: did you mean machines? set one or more of machines, models, datasets"),
        ("models,,", "--across='': set one or more of machines, models, datasets, separated by commas"),
        ("", "--across='': set one or more of machines, models, datasets, separated by commas"),
    ],
)
def test_an_unknown_setting_is_a_one_line_error(words: str, message: str) -> None:
    for verb in (["compare", "--published"], ["report", "runs", "-o", "r.html"]):
        assert message in refused(*verb, "--across", words)
