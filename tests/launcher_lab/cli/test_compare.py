"""`train compare` on run folders: tables, JSON, CSV, and clear refusals."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

from tests.commands import output_of, refused
from tests.made_runs import MakeRun


@pytest.fixture
def grid(make_run: MakeRun, tmp_path: Path) -> Path:
    for seed in (0, 1, 2):
        noise = seed * seed / 1000
        for epochs in (2, 4, 8):
            top1 = 0.5 + 0.05 * epochs / 2
            make_run(f"g/base-{epochs}-{seed}", [top1 + noise] * epochs, [60.0] * epochs, seed=seed, recipe="baseline")
            make_run(f"g/mild-{epochs}-{seed}", [top1 + noise] * epochs, [30.0] * epochs, seed=seed)
    make_run("g/stopped", finished=False)
    make_run("g/repeated", (0.55, 0.55), (30.0, 30.0), seed=0)
    (make_run("g/torn") / "config.yaml").write_text("{")
    return tmp_path / "g"


def test_tables_show_curves_speed_ups_and_excluded_runs(grid: Path) -> None:
    shown = output_of("compare", str(grid))
    assert "55.17 ± 0.21" in shown
    assert "2.00x" in shown
    assert "config.yaml:2: did not find expected node content" in shown
    assert "stopped before the end" in shown
    assert "same seed and length" in shown


def test_a_mean_above_a_quality_has_its_p_value(grid: Path) -> None:
    shown = output_of("compare", str(grid), "--quality", "60")
    assert "mild, 4 epochs: mean of 3 runs 60.17 %, above 60 % with p 0.15" in shown


def test_json_has_comparisons_fronts_and_excluded_runs(grid: Path) -> None:
    output = json.loads(output_of("compare", str(grid), "--json", "--quality", "60"))
    (one,) = output["comparisons"]
    assert (one["curve"], one["baseline"], one["kind"]) == ("mild", "baseline", "equal quality")
    assert one["value"]["value"] == pytest.approx(2.0)
    assert one["value"]["low"] <= 2.0 <= one["value"]["high"]
    assert one["value"]["p"] == one["value"]["p_corrected"] < 0.05
    assert one["value"]["runs"] == 3
    assert {entry["state"] for entry in output["not_counted"]} == {"stopped", "damaged", "finished"}
    fronts = {(p["curve"], p["epochs"]): p["front_time"] for p in output["points"]}
    assert fronts == {(c, e): c == "mild" for c in ("mild", "baseline") for e in (2, 4, 8)}


def test_two_runs_have_no_interval_and_p_values_are_corrected_for_the_number_of_comparisons(grid: Path) -> None:
    def values() -> list[dict[str, float]]:
        listed = json.loads(output_of("compare", str(grid), "--json", "--axis", "epochs"))["comparisons"]
        return [one["value"] for one in listed if one["value"]]

    for seed in (0, 1, 2):
        lines = (grid / f"mild-8-{seed}" / "metrics.jsonl").read_text().replace('"top1": 0.7', '"top1": 0.75')
        (grid / f"mild-8-{seed}" / "metrics.jsonl").write_text(lines)
    tested = [value for value in values() if value["p"] is not None]
    assert len(tested) > 3
    smallest = min(tested, key=lambda one: one["p"])
    assert smallest["p_corrected"] == pytest.approx(len(tested) * smallest["p"])
    shutil.rmtree(grid / "mild-8-1")
    assert [(one["runs"], one["low"], one["p"]) for one in values()][-1] == (2, None, None)
    assert "needs at least 3 runs per point" in output_of("compare", str(grid), "--axis", "epochs")


def test_curves_without_a_comparison_at_equal_time_get_a_note_on_equal_epochs(make_run: MakeRun, grid: Path) -> None:
    """The fast curve ends before the slow one starts."""
    make_run("f/base", [0.6, 0.7], [60.0] * 2, recipe="baseline")
    make_run("f/fast", [0.5, 0.55], [5.0] * 2)
    shown = output_of("compare", str(grid.parent / "f"))
    assert "note: --axis epochs compares mild with the baseline at equal epochs" in shown
    assert "note:" not in output_of("compare", str(grid.parent / "f"), "--axis", "epochs")
    assert "--axis epochs" not in output_of("compare", str(grid))


def test_csv_has_one_row_per_point(grid: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(output_of("compare", str(grid), "--csv"))))
    assert len(rows) == 6
    assert {row["seeds"] for row in rows} == {"3"}
    assert float(rows[0]["minutes_mean"]) == pytest.approx(2.0)


def test_a_few_single_runs_begin_with_their_values_and_what_differs(make_run: MakeRun, grid: Path) -> None:
    priced = {"name": "box", "gpu": None, "gpus": None, "price_per_hour": 6.0}
    make_run("s/a", (0.5, 0.6), (60.0, 60.0), hardware=priced, optimizer={"lr": 0.1})
    make_run("s/b", (0.5, 0.7), (90.0, 90.0), hardware=priced, optimizer={"lr": 0.2}, algorithms={}, seed=1)
    heading, *rows = (line.split() for line in output_of("compare", str(grid.parent / "s")).splitlines()[1:4])
    assert heading == ["run", "top-1", "%", "minutes", "USD", "of", "training", "differs", "in"]
    assert rows == [
        ["a", "60.00", "2", "0.2", "ema=on", "optimizer.lr=0.1", "seed=0"],
        ["b", "70.00", "3", "0.3", "ema=off", "optimizer.lr=0.2", "seed=1"],
    ]
    shown = output_of("compare", str(grid))
    assert shown.startswith("tradeoff curves (")
    assert "± one standard deviation of the runs" in shown
    assert "±" not in output_of("compare", str(grid.parent / "s"))


def test_another_metric_of_the_runs_is_compared(grid: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(output_of("compare", str(grid), "--csv", "--metric", "top5"))))
    assert {float(row["top1_mean"]) for row in rows} == {100}
    assert "top-5 %" in output_of("compare", str(grid), "--metric", "top5")
    assert "--metric=map: no run has it; `train ls metrics`" in refused("compare", str(grid), "--metric", "map")


def test_algoperf_scores_a_folder(grid: Path) -> None:
    output = json.loads(output_of("compare", str(grid), "--algoperf", "self", "--target", "0.6", "--json"))
    assert output["score"]["mild"] == 1.0
    assert "tuning needs 3 of 5" in output_of("compare", str(grid), "--algoperf", "external", "--target", "0.6")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no runs; pass run folders"),
        (["nowhere"], "nowhere is not a folder"),
        (["a" * 300], "is not a folder"),
        (["GRID", "--price", "0"], "--price=0.0: must be above 0"),
        (["GRID", "--baseline", "bse"], "--baseline=bse: no such curve; one of: baseline, mild"),
        (["GRID", "--algoperf", "self", "--target", "76"], "--target=76.0: must be a top-1"),
        (["GRID", "--target", "0.7"], "--target=0.7: add --algoperf"),
    ],
)
def test_a_wrong_option_is_a_one_line_error(grid: Path, words: list[str], message: str) -> None:
    assert message in refused("compare", *(str(grid) if word == "GRID" else word for word in words))


def test_comparing_money_needs_a_price(grid: Path) -> None:
    assert "price per hour with --price USD" in output_of("compare", str(grid), "--axis", "money")
    shown = output_of("compare", str(grid), "--axis", "money", "--price", "6")
    assert "note:" not in shown
    assert "0.2 USD" in shown.split("comparison with the baseline")[1]


def test_a_run_that_failed_on_an_image_is_listed_with_its_error(grid: Path) -> None:
    metrics = grid / "stopped" / "metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.open() if '"end"' not in line))
    (grid / "stopped" / "failure.txt").write_text("dataset.path=/data/dog.jpg: cannot be read\n")
    assert "dataset.path=/data/dog.jpg: cannot be read" in output_of("compare", str(grid))
