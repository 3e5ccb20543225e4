"""Intervals of a grid: their points against scipy's sequence, what is refused, and results, the best first."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats.qmc import Halton, discrepancy

from launcher.cli import main as cli
from launcher.config.compose import compose
from launcher.config.resolved import write
from launcher.records.metrics import EvalRecord, Record, StartRecord
from launcher.records.run_folder import RunFolder
from launcher_lab.cli.curve import ranked
from launcher_lab.cli.grid import Cell, expand, points
from tests.commands import refused
from tests.grids import train_by
from tests.made_runs import append, end
from tests.runs import SMALL, Here

SHAPES = ["recipe=mild", "dataset=shapes", "model=resnet18", "launch=cpu", "batch_size=64"]
LR = "optimizer.lr=interval(0.1,1)"


def drawn(trials: int, *words: str) -> list[dict[str, float]]:
    values = [{key: float(word.partition("=")[2]) for key, word in one.items()} for one in points(words, trials)]
    assert all(0.1 <= one.get("optimizer.lr", 0.5) <= 1.0 for one in values)
    return values


def test_points_are_those_of_scipys_halton_sequence_by_the_first_seed() -> None:
    words = ("image.flip=interval(0,1)", "optimizer.momentum=interval(0,1)", "seed=3,4")
    values = np.array([list(one.values()) for one in drawn(64, *words)])
    assert values == pytest.approx(Halton(2, scramble=True, rng=np.random.default_rng(3)).random(64), abs=1e-5)
    assert (values[:10] == [list(one.values()) for one in drawn(10, *words)]).all()
    assert discrepancy(values) < discrepancy(np.random.default_rng(0).random((64, 2)))


def test_scales_and_whole_numbers() -> None:
    for plain, log in zip(drawn(8, LR), drawn(8, "optimizer.lr=tag(log, interval(0.1,1))"), strict=True):
        fraction = (plain["optimizer.lr"] - 0.1) / 0.9
        assert log["optimizer.lr"] == pytest.approx(0.1 * 10**fraction, rel=1e-4)
    sizes = drawn(8, "batch_size=interval(16,18)")
    assert sorted(one["batch_size"] for one in sizes) == [16, 17, 18]


def test_each_point_has_all_choices_and_seeds() -> None:
    pair = [LR, "optimizer.weight_decay=tag(log,interval(1e-5,1e-3))"]
    words = [*pair, "epochs=9,18", "seed=0,1", *SHAPES]
    cells = expand(words, points=points(words, 2))
    values = [
        (one.optimizer.lr, one.optimizer.weight_decay, one.schedule.dilate, one.seed)
        for one in (cell.composed.config for cell in cells)
    ]
    assert len(set(values)) == len({cell.folder for cell in cells}) == 8
    assert len({value[:2] for value in values}) == 2
    assert [value[3] for value in values] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    "verb",
    [[], ["plan"], ["estimate"], ["submit", "--slurm"], ["ablate"], ["ablate", "--with"], ["ablate", "trials=8"]],
)
def test_an_interval_elsewhere_is_one_line_that_names_what_to_type(verb: list[str]) -> None:
    line = refused(*verb, LR, *SHAPES)
    assert line.count("error:") == 1
    assert line.endswith(f"is an interval; type train curve '{LR}' trials=8\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([LR], f"{LR} (command line): is an interval; add the number of its values, such as trials=8"),
        (["trials=8"], "trials=8 (command line): needs an interval, such as 'optimizer.lr=interval(0.1,1)'"),
        ([LR, "trials=0"], "trials=0 (command line): must be a whole number, at least 1"),
        (["lr=interval(0.1,1)", "trials=8"], "lr=0.755064 (command line): no such key; did you mean optimizer.lr?"),
        ([LR, "trials=many"], "trials=many (command line): must be a whole number, at least 1"),
        ([LR, "trials=99999999"], "trials=99999999 (command line): makes more than 1,000 runs; set fewer"),
        ([LR, "trials=600", "seed=0,1"], "seed=0,1 (command line): makes more than 1,000 runs; list fewer values"),
        (
            ["optimizer.lr=interval(1,0.1)", "trials=2"],
            "optimizer.lr=interval(1,0.1) (command line): must have its smaller bound first, such as interval(0.1,1)",
        ),
        (["optimizer.lr=tag(log,interval(0,1))", "trials=2"], "and above 0 for tag(log,...), such as interval(0.1,1)"),
        (["dataset.path=interval(0,1)", "trials=2"], "takes no interval; list its values as a,b"),
        (["optimizer.lr=interval(-1,-0.5)", "trials=1"], "must be at least 0"),
        (["n_trials=8"], "type train curve 'optimizer.lr=interval(0.1,1)' trials=8"),
        ([LR, "--trials", "8"], "type train curve 'optimizer.lr=interval(0.1,1)' trials=8"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(words: list[str], line: str) -> None:
    error = refused("curve", *SHAPES, *words)
    assert error.count("error:") == 1
    assert line in error


def test_results_are_ordered_by_quality_or_by_time_to_target(tmp_path: Path) -> None:
    words = [*SHAPES, f"runs={tmp_path}", LR]
    plain = expand(words, points=points(words, 3))
    for cell, evaluations in zip(plain, ([(10.0, 0.5), (20.0, 0.9)], [(10.0, 0.6), (20.0, 0.7)]), strict=False):
        folder = RunFolder(cell.folder)
        folder.path.mkdir()
        write(cell.composed.config, folder.config)
        rows: list[Record] = [StartRecord(0, 0.0, 1, 2, 2, "cpu", "float32", "top1", "higher")]
        rows += [
            EvalRecord(step, 0.0, step, {"top1": top1, "top5": 1.0}, 1.0, 10, 1.0, seconds)
            for step, (seconds, top1) in enumerate(evaluations, 1)
        ]
        append(folder.metrics, *rows, end(2))
    aimed = [Cell(cell.words, compose([*cell.words, "target=top1:0.6"]), cell.folder) for cell in plain]
    numbers = {cell.folder: number for number, cell in enumerate(plain, 1)}
    of_plain = [(numbers[one.cell.folder], one.top1, one.seconds) for one in ranked(plain)]
    assert of_plain == [(1, 0.9, 20.0), (2, 0.7, 20.0), (3, None, None)]
    assert [(numbers[one.cell.folder], one.seconds) for one in ranked(aimed)] == [(2, 10.0), (1, 20.0), (3, None)]


@pytest.mark.system
def test_each_trial_runs_once_and_the_best_is_a_line_to_type(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    train_by(cli.main, monkeypatch)
    words = ["curve", *SMALL, "epochs=1", "optimizer.lr=interval(0.01,0.1)", "trials=2", "runs=grid"]
    first = here(*words).stdout
    assert "2 finished" in first
    results = json.loads(here(*words, "--json").stdout)["runs"]
    assert [one["outcome"] for one in results] == ["already finished"] * 2
    assert results[0]["top1"] >= results[1]["top1"]
    (line,) = (line for line in first.splitlines() if line.startswith("the best: train "))
    best = next(word for word in results[0]["words"] if word.startswith("optimizer.lr="))
    assert best in line.split()
    assert "run_name" not in line
