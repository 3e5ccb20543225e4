"""The verification of a speedrun's folder refuses what its runs do not support."""

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher_lab.study.tracks import track
from launcher_lab.study.verify import RECORD, result_of, verified, write_record
from tests.commands import execute, refused
from tests.runs import Here
from tests.speedruns import TRACK, write_speedrun


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("speedrun")
    yield write_speedrun(Here(path), "record")
    shutil.rmtree(path)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """Return a copy in another place, without checkpoints."""
    return Path(shutil.copytree(original, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints")))


def edit(file: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the records of a file of JSON lines."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    change(rows)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def replaced(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def test_a_copy_of_the_folder_is_verified_by_its_command(folder: Path) -> None:
    stated = json.loads((folder / RECORD).read_text())
    code, output, errors = execute("speedrun", "--verify", str(folder), "--json")
    assert (code, json.loads(output)) == (0, stated), errors
    tops = [run["top1"] for run in stated["runs"]]
    assert stated["top1_mean"] == pytest.approx(np.mean(tops))
    assert len({*tops}) > 1
    assert [run["seed"] for run in stated["runs"]] == [0, 1, 2, 3, 4]
    assert "a record, p = " in execute("speedrun", "--verify", str(folder))[1]
    built_in = ("dataset=shapes", "dataset.train_samples=96", "dataset.val_samples=50", "dataset.native_size=32")
    assert execute("speedrun", "--verify", str(folder), *built_in)[0] == 0
    assert "has another data set than" in refused("speedrun", "--verify", str(folder), *built_in[:3])


def test_a_missed_target_is_no_record(folder: Path) -> None:
    write_record(folder, result_of(folder, track("own:99")))
    assert not verified(folder).reached
    assert "the target is missed" in refused("speedrun", "--verify", str(folder))


def test_a_record_has_the_most_runs_at_once_of_a_machine(folder: Path) -> None:
    def together(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["time"] += first - fourth

    first, fourth = (
        json.loads((folder / name / "metrics.jsonl").open().readline())["time"] for name in ("seed0", "seed3")
    )
    assert result_of(folder, track(TRACK)).runs_at_once == 1
    edit(folder / "seed3" / "metrics.jsonl", together)
    assert "other values than the runs: 'runs', 'runs_at_once'" in refused("speedrun", "--verify", str(folder))
    write_record(folder, result_of(folder, track(TRACK)))
    assert ", 2 runs at once: a record" in execute("speedrun", "--verify", str(folder))[1]
    replaced(folder / "seed3" / "environment.json", '"host": "', '"host": "other-')
    assert result_of(folder, track(TRACK)).runs_at_once == 1


def test_an_older_record_without_later_values_is_verified(folder: Path) -> None:
    stated = json.loads((folder / RECORD).read_text())
    del stated["runs_at_once"], stated["index_sha256"]
    (folder / RECORD).write_text(json.dumps(stated))
    assert verified(folder).runs_at_once == 1


def last_evaluation(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return [row for row in rows if row["kind"] == "eval"][-1]


def faster(rows: list[dict[str, Any]]) -> None:
    """Subtract ten seconds from the training time of a slow run."""
    for row in rows:
        row["time"] += 12.0 * row["step"]
        if "train_seconds" in row:
            row["train_seconds"] += 12.0 * row["step"] - 10.0 * (row["kind"] == "end")
        for name in ("step_seconds", "seconds"):
            if name in row and row["kind"] != "eval":
                row[name] += 12.0 * (1 if name == "step_seconds" else 6)


METRICS: dict[str, tuple[Callable[[list[dict[str, Any]]], object], str]] = {
    "another accuracy": (lambda rows: last_evaluation(rows)["metrics"].update(top1=0.98), "has other values than"),
    "no fraction": (lambda rows: last_evaluation(rows)["metrics"].update(top1=0.987), "no fraction of 50 samples"),
    "other samples": (lambda rows: last_evaluation(rows).update(samples=25), "its samples as 25, not 50"),
    "an early end": (lambda rows: rows[-1].update(ended_by="target"), "the end as [True, 'target', 12]"),
    "no end": (lambda rows: rows.pop(), "is not one finished run"),
    "no last evaluation": (lambda rows: rows.remove(last_evaluation(rows)), "the last evaluation's step as 6"),
    "a lacking value": (lambda rows: rows[3].pop("step_seconds"), "no whole records in lines 4"),
    "another device": (lambda rows: rows[0].update(device="NVIDIA H100"), "differ in device"),
    "a faster run": (faster, "the training time and that of its epochs differ"),
    "a slower step": (lambda rows: rows[2].update(step_seconds=9.0), "step 2: the training time and that of its steps"),
    "a longer clock": (lambda rows: rows[-1].update(time=rows[-1]["time"] + 60), "the clock, and the time of training"),
    "decreasing": (lambda rows: rows[-1].update(train_seconds=0.0), "the training time decreases"),
}


@pytest.mark.parametrize("name", METRICS)
def test_records_that_contradict_each_other_are_refused(name: str, folder: Path) -> None:
    change, message = METRICS[name]
    edit(folder / "seed2" / "metrics.jsonl", change)
    assert message in execute("speedrun", "--verify", str(folder))[2]


def remove_a_run(folder: Path) -> None:
    shutil.rmtree(folder / "seed4")


def choose_a_run(folder: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl"):
        replaced(folder / "seed4" / name, *(("seed: 4", "seed: 7") if name == "config.yaml" else ("}", "}")))


def add_a_run(folder: Path) -> None:
    shutil.copytree(folder / "seed4", folder / "seed5")


def copy_a_run(folder: Path) -> None:
    shutil.copy(folder / "seed1" / "metrics.jsonl", folder / "seed2" / "metrics.jsonl")


def change_the_learning_rate(folder: Path) -> None:
    replaced(folder / "seed3" / "config.yaml", "{lr: 0.05", "{lr: 0.06")


def change_the_version(folder: Path) -> None:
    replaced(folder / "seed3" / "environment.json", '"version": "', '"version": "9')


def change_the_data_set(folder: Path) -> None:
    (folder / "seed3" / "dataset.json").write_text('{"identities": ["a"], "splits": {}}')


def change_every_data_set(folder: Path) -> None:
    for run in folder.glob("seed*"):
        replaced(run / "config.yaml", "val_samples: 50", "val_samples: 51")


def train_on_the_evaluation(folder: Path) -> None:
    index = folder / "seed0" / "index"
    table = json.loads((index / "index.json").read_text())
    (index / "index.json").write_text(json.dumps({**table, "val": table["train"]}))
    for name in ("files", "files_ends", "labels"):
        shutil.copy(index / f"train.{name}.npy", index / f"val.{name}.npy")


def use_weights(folder: Path) -> None:
    for run in folder.glob("seed*"):
        replaced(run / "config.yaml", "weights: null", "weights: library")


def change_the_index(folder: Path) -> None:
    labels = folder / "seed2" / "index" / "train.labels.npy"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\1")


def raise_the_result(folder: Path) -> None:
    replaced(folder / RECORD, '"p": ', '"p": 1e-9, "was": ')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove_a_run, "has 4 runs, of seeds 0, 1, 2, 3, and a record has 5 runs, of seeds 0 to 4"),
        (choose_a_run, "of seeds 0, 1, 2, 3, 7"),
        (add_a_run, "has 6 runs"),
        (copy_a_run, "seed1 and seed2 have equal losses: one is a copy"),
        (change_the_learning_rate, "seed0 and seed3 differ in optimizer.lr"),
        (change_the_version, "seed0 and seed3 differ in version"),
        (change_the_data_set, "the runs have different data sets"),
        (change_every_data_set, "its samples as 50, not 51"),
        (train_on_the_evaluation, "seed0: trains on 96 images of the evaluation"),
        (use_weights, "model.weights=library (seed0): must be null"),
        (change_the_index, "record.json has other values than the runs: 'index_sha256'"),
        (lambda folder: shutil.rmtree(folder / "seed2" / "index"), "other values than the runs: 'index_sha256'"),
        (lambda folder: (folder / "seed2" / "index" / "val.files.npy").write_bytes(b""), "index cannot be read"),
        (lambda folder: (folder / "seed2" / "metrics.jsonl").write_bytes(b""), "seed2: is not one finished run"),
        (raise_the_result, "record.json has other values than the runs: 'p', 'was'"),
        (lambda folder: (folder / RECORD).unlink(), "has no record.json of a track"),
        (lambda folder: (folder / "seed1" / "environment.json").unlink(), "lacks a readable file of a run"),
    ],
)
def test_folders_that_show_something_else_are_refused(
    change: Callable[[Path], object], message: str, folder: Path
) -> None:
    change(folder)
    code, _, errors = execute("speedrun", "--verify", str(folder))
    assert code == 2
    assert message in errors


def test_a_track_of_built_in_images_has_its_own_data_set(folder: Path) -> None:
    from dataclasses import replace

    own = track(TRACK)
    values = {**own.values, "dataset.name": "shapes", "dataset.train_samples": 96, "dataset.val_samples": 50}
    same = replace(own, values={**values, "dataset.native_size": 32})
    assert result_of(folder, same).dataset == same.identity
    for run in folder.glob("seed*"):
        (run / "dataset.json").write_text('{"identities": ["a"], "splits": {}}')
    with pytest.raises(Exception, match="the runs have another data set than the track"):
        result_of(folder, same)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_nothing_of_the_folder_is_executed(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "seed0" / "evil.py").write_text("open('exploded', 'w')")
    replaced(folder / "seed0" / "config.yaml", "code: []", f"code: [{folder}/seed0/evil.py]")
    (folder / "seed1" / "checkpoints").mkdir()
    (folder / "seed1" / "checkpoints" / "step-00000012.pt").write_bytes(pickle.dumps(Bomb()))
    np.save(folder / "seed1" / "index" / "val.labels.npy", np.array([Bomb()], object), allow_pickle=True)
    errors = execute("speedrun", "--verify", str(folder))[2]
    assert "differ in code" in errors
    assert "seed1: its index cannot be read" in errors
    assert not (tmp_path / "exploded").exists()
