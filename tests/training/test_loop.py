"""The loop evaluates, saves, records and ends by its keys, and repeats an interrupted evaluation."""

from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.rank.group import Ranks
from launcher.rank.signs import StopFlag
from launcher.records.metrics import read_last, read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import checkpoint, loop
from launcher.training.evaluation import Evaluation
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver
from launcher.training.trainer import Trainer, build_trainer
from tests.networks import use_tiny
from tests.trainers import SMALL, assert_same_state, build, make_nan, steps
from tests.two_ranks import on_two_ranks


def trained(run: Trainer, folder: RunFolder, stop: StopFlag, *, resumed: bool) -> bool:
    with MetricLogger(run, folder, resumed=resumed) as logger, Saver(folder, run.config.checkpoint, run.ranks) as saver:
        finished = loop.train(run, logger, saver, NonFiniteGuard(run, logger), stop)
        logger.log_end(finished=finished)
    return finished


@pytest.mark.parametrize("interrupted", [2, 3])
def test_the_best_checkpoint_is_saved_after_an_interrupted_evaluation(
    interrupted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation of the best of three epochs is interrupted, and repeated when the run resumes."""
    words = ["algorithms=[]", "eval_every=1ep", "checkpoint.every=3ep", "logger.tensorboard=false"]
    folder, stop = RunFolder(tmp_path), StopFlag()
    folder.checkpoints.mkdir()

    def evaluated(run: Trainer, **_: Any) -> Evaluation | None:
        epoch = run.next_step // run.plan.steps_per_epoch
        if epoch == interrupted and not stop.requested:
            stop.requested = True
            return None
        top1 = 0.9 if epoch == interrupted else 0.1
        return Evaluation({"top1": top1, "top5": 1.0, "balanced_accuracy": top1, "macro_f1": top1}, 1.0, 10)

    monkeypatch.setattr(Trainer, "evaluate", evaluated)
    first, again = build(*words), build(*words)
    assert not trained(first, folder, stop, resumed=False)
    assert checkpoint.load(folder.best)["step"] == first.plan.steps_per_epoch
    state = checkpoint.newest_valid(folder.checkpoints)
    again.load_state_dict(state)
    assert trained(again, folder, StopFlag(), resumed=True)
    assert checkpoint.load(folder.best)["step"] == interrupted * again.plan.steps_per_epoch
    newest = checkpoint.newest_valid(folder.checkpoints)
    assert newest["evaluated_step"] == again.plan.total_steps, "another resume repeats no evaluation"


SILENT = ["algorithms=[]", "logger.tensorboard=false"]
OFTEN = ["interval=0.5ep", "tensorboard=false"]


def test_checkpoints_and_evaluations_follow_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 steps in three epochs."""
    words = ["checkpoint.every=0.75ep", "checkpoint.keep=3", "checkpoint.best=false", "eval_every=1.25ep"]
    run, folder, evaluated = build(*SILENT, *words), RunFolder(tmp_path), []
    folder.checkpoints.mkdir()

    def evaluate(run: Trainer, **_: Any) -> Evaluation:
        evaluated.append(run.next_step)
        return Evaluation({"top1": 0.5, "top5": 1.0, "balanced_accuracy": 0.5, "macro_f1": 0.5}, 1.0, 10)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    assert trained(run, folder, StopFlag(), resumed=False)
    assert evaluated == [5, 10, 12]
    assert sorted(file.name for file in folder.checkpoints.iterdir()) == [f"step-{n:08d}.pt" for n in (6, 9, 12)]


def test_steps_are_recorded_at_the_interval_and_tensorboard_only_if_it_is_on(tmp_path: Path) -> None:
    for name, words, noted in (("a", ["interval=5ba", "tensorboard=true"], [5, 10]), ("b", OFTEN, [2, 4, 6])):
        run, folder = build("algorithms=[]", *(f"logger.{word}" for word in words)), RunFolder(tmp_path / name)
        folder.checkpoints.mkdir(parents=True)
        assert trained(run, folder, StopFlag(), resumed=False)
        done = [row["step"] for row in read_metrics(folder.metrics) if row["kind"] == "train"]
        assert done[: len(noted)] == noted
        assert folder.tensorboard.exists() == (name == "a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy=skip", "limit=2"], r"for 3 steps in a row \(nonfinite.limit=2\)"),
        (["policy=stop"], r"\(nonfinite.policy=stop\)"),
    ],
)
def test_steps_that_are_not_finite_end_a_run_by_its_keys(words: list[str], message: str, tmp_path: Path) -> None:
    run, folder = build(*SILENT, "eval_every=3ep", *(f"nonfinite.{word}" for word in words)), RunFolder(tmp_path)
    folder.checkpoints.mkdir()
    make_nan(run, 5, 6, 7)
    with pytest.raises(UserError, match=message):
        trained(run, folder, StopFlag(), resumed=False)


IN_TIME = ["algorithms=[]", "epochs=3", "eval_every=2ep", "checkpoint.every=3ep", "logger.tensorboard=false"]


def seconds_of(run: Trainer, clock: str) -> float:
    """Return seconds of a clock that counts 10 a step and 5 an evaluation."""
    return {"training": 10.0 * run.next_step, "evaluation": 5.0 * len(run.history), "saving": 1.0}[clock]


def with_this_clock(run: Trainer) -> Trainer:
    run.clock.seconds = lambda clock: seconds_of(run, clock)  # type: ignore[method-assign]
    return run


def test_a_run_out_of_time_evaluates_saves_and_ends_and_goes_on_with_more(tmp_path: Path) -> None:
    """Four steps an epoch, and an evaluation after 8 of 12 steps; the host reads the stop after the step."""
    folder, minutes = RunFolder(tmp_path), f"stop.minutes={111.5 / 60}"
    folder.checkpoints.mkdir()
    run = with_this_clock(build(*IN_TIME, minutes))
    assert trained(run, folder, StopFlag(), resumed=False)
    assert (run.next_step, run.ended_by) == (12, None)
    run = with_this_clock(build(*IN_TIME, f"stop.minutes={88.5 / 60}"))
    assert trained(run, folder, StopFlag(), resumed=False)
    assert (run.next_step, run.ended_by, len(run.history)) == (9, "stop.minutes", 2)
    saved = checkpoint.load(folder.checkpoints / "step-00000009.pt")
    end = read_last(folder.metrics)[-1]
    assert (end["finished"], end["ended_by"], end["step"]) == (True, "stop.minutes", 9)
    again = with_this_clock(build(*IN_TIME, f"stop.minutes={88.5 / 60}"))
    again.load_state_dict(saved)
    assert again.is_done
    longer = build(*IN_TIME, "stop.minutes=10")
    longer.load_state_dict(saved)
    assert trained(longer, folder, StopFlag(), resumed=True)
    whole = build(*IN_TIME)
    steps(whole, whole.plan.total_steps)
    assert_same_state(longer, whole)


def test_a_stop_signal_when_the_time_is_up_stops(tmp_path: Path) -> None:
    folder, stop = RunFolder(tmp_path), StopFlag()
    folder.checkpoints.mkdir()
    stop.requested = True
    run = with_this_clock(build(*IN_TIME, "stop.minutes=0.01"))
    assert not trained(run, folder, stop, resumed=False)
    assert (run.out_of_time, run.history) == (False, [])


def end_in_time(rank: int, folder: Path) -> None:
    """Train on two ranks of which only the second is out of time, after three steps."""
    use_tiny()
    config = compose(["schedule.warmup=0ba", *SMALL, *IN_TIME, "stop.minutes=0.5"]).config
    run = build_trainer(config, Ranks(rank, 2, rank, 2, torch.device("cpu")))
    run.clock.seconds = lambda clock: rank * seconds_of(run, clock)  # type: ignore[method-assign]
    assert trained(run, RunFolder(folder), StopFlag(), resumed=False)
    assert (run.next_step, run.ended_by, len(run.history)) == (4, "stop.minutes", 1)


def test_all_ranks_end_with_the_first_that_is_out_of_time(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    on_two_ranks(end_in_time, tmp_path)
