"""`train compare` and `train report` on runs whose metric is better if lower: its own values, and less is faster."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import output_of, refused
from tests.made_runs import MakeRun

# Perplexities of an epoch each, by recipe, and seconds an epoch.
RUNS = {"mild": ((12.0, 8.0, 6.0), 60.0), "hot": ((9.0, 5.0, 4.0), 90.0)}


@pytest.fixture
def folder(make_run: MakeRun, tmp_path: Path) -> Path:
    for recipe, (values, seconds) in RUNS.items():
        for epochs in (1, 2, 3):
            for seed in (0, 1, 2):
                of_seed = [value + seed / 10 for value in values[:epochs]]
                name = f"g/{recipe}-{epochs}-{seed}"
                metrics = make_run(name, of_seed, [seconds] * epochs, seed=seed, recipe=recipe) / "metrics.jsonl"
                metrics.write_text(metrics.read_text().replace('"top1"', '"perplexity"'))
    return tmp_path / "g"


def compared(folder: Path, *words: str) -> list[dict[str, Any]]:
    printed = json.loads(output_of("compare", str(folder), "--baseline", "mild", "--json", *words))
    comparisons: list[dict[str, Any]] = printed["comparisons"]
    return comparisons


def test_the_tables_have_the_metrics_own_values(folder: Path) -> None:
    printed = output_of("compare", str(folder), "--baseline", "mild")
    assert "4.10 ± 0.1" in printed
    assert "8.10 -> 7.44" in printed
    assert not any(word in printed for word in ("-perplexity", "-4.1", "top-1", " %  "))
    rows = csv.DictReader(output_of("compare", str(folder), "--csv").splitlines())
    assert [float(row["top1_mean"]) for row in rows if row["curve"] == "mild"] == pytest.approx([12.1, 8.1, 6.1])


def test_the_time_to_a_perplexity_is_less_for_the_faster_recipe(folder: Path) -> None:
    (speed,) = compared(folder, "--quality", "6.5")
    # note: hot has 9.1 after 1.5 and 5.1 after 3 minutes, mild 8.1 after 2 and 6.1 after 3
    hot, mild = 1.5 * 2 ** ((9.1 - 6.5) / 4), 2 * 1.5 ** ((8.1 - 6.5) / 2)
    assert (speed["at"], speed["cost"], speed["baseline_cost"]) == (6.5, pytest.approx(hot), pytest.approx(mild))
    assert speed["value"]["value"] == pytest.approx(mild / hot)
    (gain,) = compared(folder, "--cost", "3")
    assert (gain["baseline_quality"], gain["quality"]) == (pytest.approx(6.1), pytest.approx(5.1))
    assert gain["value"]["value"] == pytest.approx(-1.0)
    assert gain["value"]["low"] < -1.0 < gain["value"]["high"] < 0
    high, low = (compared(folder, "--quality", value)[0]["reason"] for value in ("20", "3"))
    assert high == (
        "hot has no point this high; its cheapest has 9.10; mild has no point this high; its cheapest has 12.10"
    )
    assert low == "hot has no point this low; its best has 4.10; mild has no point this low; its best has 6.10"


def test_algoperfs_score_takes_a_perplexity(folder: Path) -> None:
    printed = json.loads(output_of("compare", str(folder), "--algoperf", "self", "--target", "6.2", "--json"))
    seconds = {name: list(row.values()) for name, row in printed["seconds_to_target"].items()}
    assert seconds == {"hot": [180.0], "mild": [180.0]}
    fewer = json.loads(output_of("compare", str(folder), "--algoperf", "self", "--target", "5.2", "--json"))
    assert list(fewer["seconds_to_target"]["mild"].values()) == [None]
    assert fewer["score"] == {"hot": 1.0, "mild": 0.0}
    assert refused("compare", str(folder), "--algoperf", "self", "--target=-6") == (
        "error: --target=-6.0: must be above 0\n"
    )
