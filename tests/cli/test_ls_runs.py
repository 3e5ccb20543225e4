"""`train ls runs`: state, best value, cost and the line to resume of every run in a folder."""

import json
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.config.schema import RunConfig
from launcher.records.metrics import EvalRecord, Record, StartRecord, TrainRecord
from launcher.records.run_folder import RunFolder, create
from tests.commands import output_of, refused
from tests.made_runs import append

CONFIG = compose(["recipe=mild", "launch=cpu", "dataset=shapes", "epochs=4", "hardware=p4d_24xlarge"]).config
A100 = "NVIDIA A100-SXM4-40GB"


def started(device: str = A100, ranks: int = 8) -> StartRecord:
    return StartRecord(0, 1000.0, ranks, 40, 4, device, "float32", "top1", "higher")


def evaluated(step: int, top1: float, at: float) -> EvalRecord:
    return EvalRecord(step, at, step / 10, {"top1": top1, "top5": 1.0}, 1.0, 100, 5.0, at)


def trained(step: int, at: float) -> TrainRecord:
    return TrainRecord(step, at, step / 10, 1.0, 0.1, 32, 100.0, 0.1, 0.01, None, at)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def make(runs: Path, name: str, *records: Record, config: RunConfig = CONFIG) -> RunFolder:
    folder = create(runs, name)
    write(config, folder.config)
    if records:
        append(folder.metrics, *records)
    return folder


def listed(runs: Path) -> dict[str, dict[str, object]]:
    rows = json.loads(output_of("ls", "runs", str(runs), "--json"))["runs"]
    return {Path(row["path"]).name: row for row in rows}


def test_each_run_is_a_line(runs: Path) -> None:
    for name in ("run0", "run1"):
        make(runs, name, started(), *[trained(step, 1000.0 + step) for step in range(400)], evaluated(40, 0.5, 1500.0))
    header, *lines = output_of("ls", "runs", str(runs)).splitlines()
    assert " ".join(header.split()) == "run state best epochs wall clock wall-clock cost to resume, or what is wrong"
    assert len(lines) == 2
    assert all(" interrupted  top-1 50.00%  39.9/4 " in line for line in lines)
    assert all(line.endswith(f"train resume {runs}/{line.split()[0]}") for line in lines)


def test_where_no_run_is_yet_the_list_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    another = "type train ls runs FOLDER for those of another folder"
    assert output_of("ls", "runs") == f"no run in runs yet; {another}\n"
    assert output_of("ls", "runs", str(tmp_path)) == f"no run in {tmp_path} yet; {another}\n"
    assert json.loads(output_of("ls", "runs", "--json")) == {"runs": []}


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    assert f"{tmp_path}/x is no folder; type train ls runs FOLDER" in refused("ls", "runs", str(tmp_path / "x"))
    assert "only train ls runs takes a folder" in refused("ls", "recipes", str(tmp_path))


@pytest.mark.parametrize(("word", "meaning"), [("long_tail", "key loss.logit_adjustment"), ("gradcam", "verb look")])
def test_ls_knows_other_words(word: str, meaning: str) -> None:
    assert f"did you mean the {meaning}?" in refused("ls", word)


def test_the_best_value_of_another_metric(runs: Path) -> None:
    make(runs, "a", started(), evaluated(20, 0.7, 2000.0))
    (row,) = json.loads(output_of("ls", "runs", str(runs), "--metric", "top5", "--json"))["runs"]
    assert (row["metric"], row["best_text"]) == ("top-5", "100.00%")
    assert "--metric=tpo5: no run has it; `train ls metrics`" in refused("ls", "runs", str(runs), "--metric", "tpo5")
    assert "--metric=top5: only train ls runs takes a metric" in refused("ls", "recipes", "--metric", "top5")


def test_metrics_are_listed_with_their_tasks() -> None:
    rows = {row["name"]: row for row in json.loads(output_of("ls", "metrics", "--json"))["metrics"]}
    assert (rows["balanced_accuracy"]["tasks"], rows["balanced_accuracy"]["better"]) == (["classification"], "higher")
    assert (rows["mae"]["tasks"], rows["mae"]["better"]) == (["regression"], "lower")
    assert "threshold" not in rows
    assert all(row["what"] for row in rows.values())
    assert "mean recall of the classes" in output_of("ls", "metrics")
