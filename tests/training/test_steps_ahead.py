"""Two steps are queued before the host waits, and are repeated after a bad one, with the bits and records of one."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from launcher.rank.group import Ranks
from launcher.rank.signs import Requests
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import nonfinite
from launcher.training import trainer as building
from launcher.training.callbacks import Callbacks
from launcher.training.meters import StepOutcome
from launcher.training.step import TrainStep
from launcher.training.trainer import Trainer, build_trainer
from tests.covering import sweep
from tests.networks import tiny
from tests.trainers import EARLY, assert_same_state, build, make_nan, small_config, train_all
from tests.two_ranks import on_two_ranks

# Two epochs of eight steps.
LONG = ["dataset.train_samples=64", "epochs=2", "eval_every=2ep", "checkpoint.every=2ep", "logger.tensorboard=false"]
# Steps N and N + 2, two in a row where an epoch ends, and three in a row.
BAD = (1, 3, 7, 8, 12, 13, 14)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build_model", tiny)


def trained(run: Trainer, folder: Path, ahead: int) -> list[int]:
    """Train a run with as many steps ahead as on a device with streams; return the numbers of all steps taken."""
    taken: list[int] = []
    (folder / "checkpoints").mkdir(parents=True)
    inner = TrainStep.__call__

    def step(self: TrainStep, *arguments: Any) -> StepOutcome:
        taken.append(arguments[3].step)
        return inner(self, *arguments)

    with (
        patch.object(TrainStep, "__call__", step),
        patch.object(nonfinite, "has_streams", lambda _: True),
        patch.object(nonfinite, "_AHEAD", ahead),
    ):
        train_all(run, RunFolder(folder))
    return taken


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return a run's records without their times."""
    rows = read_metrics(RunFolder(folder).metrics)
    return [{key: row[key] for key in row if key != "time" and "second" not in key} for row in rows]


# note: no step stays in the queue before an average
RARE_EMA = "algorithms.ema.update_interval=5ba"
FREEZING = ["algorithms.layer_freezing.start=0.0", "algorithms.layer_freezing.final_fraction=0.9"]
CASES = [
    ["algorithms=[ema,sam,mixup]", RARE_EMA, *EARLY["sam"]],
    ["algorithms=[ema]", RARE_EMA, "precision=fp16"],
    ["algorithms=[layer_freezing,ema]", *FREEZING, RARE_EMA],
    ["algorithms=[backbone_freezing]", "algorithms.backbone_freezing.until=10ba", "optimizer=schedule_free_adamw"],
    ["algorithms=[swa,progressive_resizing]", "algorithms.swa.start=0ba", "algorithms.swa.update_interval=5ba"],
    ["algorithms=[selective_backprop]", *EARLY["selective_backprop"], "optimizer=soap", "optimizer.interval=2"],
]


@pytest.mark.parametrize("words", CASES, ids=lambda words: words[0])
@pytest.mark.parametrize("interval", sweep(["10ba", "3ba"], ["3ba"]))
def test_steps_after_bad_ones_are_repeated_to_the_same_bits_and_records(
    words: list[str], interval: str, tmp_path: Path
) -> None:
    results = []
    for ahead in (1, 2):
        run, folder = build(*LONG, f"logger.interval={interval}", *words), tmp_path / str(ahead)
        bad = [number for number in BAD if number < run.plan.total_steps]
        make_nan(run, *bad)
        taken = trained(run, folder, ahead)
        results.append((run, rows_of(folder), taken))
    (one, rows, taken), (two, own_rows, own_taken) = results
    assert_same_state(two, one)
    assert own_rows == rows
    assert [row["step"] for row in rows if row["kind"] == "nonfinite"] == bad
    assert len(own_taken) > len(taken) > run.plan.total_steps


def test_two_steps_are_queued_and_none_is_repeated_twice_without_need(tmp_path: Path) -> None:
    """The record after step 9 and the end of the first epoch, after step 7, leave one step in the queue."""
    run = build(*LONG, "algorithms=[]")
    make_nan(run, 1, 3, 9, 11)
    repeated = [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11, 10, 11, 12, 13, 12, 13, 14, 15]
    assert trained(run, tmp_path, ahead=2) == repeated
    assert run.history


class Seen:
    """A callback that keeps the step, the loss and the first weight after each step."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, float, float]] = []

    def after_step(self, state: Any) -> None:
        self.rows.append((state.step, state.loss, next(state.model.parameters()).flatten()[0].item()))


def test_a_callback_reads_the_weights_of_its_step(tmp_path: Path) -> None:
    rows = []
    for ahead in (1, 2):
        run, seen = build(*LONG, "algorithms=[]"), Seen()
        run.callbacks = Callbacks()
        run.callbacks._active = {"seen": seen}
        run.callbacks._values = {"seen": None}  # type: ignore[dict-item]
        trained(run, tmp_path / str(ahead), ahead)
        rows.append(seen.rows)
    assert rows[0] == rows[1]
    assert len({weight for _, _, weight in rows[0]}) == run.plan.total_steps


def _request(rank: int, folder: Path) -> None:
    """Request a stop on rank 1 alone at the start of step 4, and make steps 2 and 4 NaN there."""
    torch.set_num_threads(1)
    building.build_model = tiny
    run = build_trainer(
        small_config("mixup", *LONG, "logger.interval=10ba"), Ranks(rank, 2, rank, 2, torch.device("cpu"))
    )
    if rank:
        make_nan(run, 2, 4)
    inner, seen = nonfinite.NonFiniteGuard.step, []

    def step(self: Any, batch: Any, requests: Requests, waited: float) -> Requests:
        got = inner(self, batch, Requests(rank == 1 and run.next_step == 4), waited)
        seen.append(run.next_step if got.stop else 0)
        return got

    with patch.object(nonfinite.NonFiniteGuard, "step", step):
        trained(run, folder / str(rank), ahead=2)
    assert [one for one in seen if one] == [7], seen


def test_all_ranks_see_a_request_two_steps_later(tmp_path: Path) -> None:
    on_two_ranks(_request, tmp_path)
