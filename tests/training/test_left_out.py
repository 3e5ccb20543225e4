"""A step that is not finite, masked on the device: nothing of it is left, and the run goes on as if it had not been."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from launcher.rank.group import Ranks
from launcher.rank.signs import Requests
from launcher.records.folder import RunFolder
from launcher.records.metrics import read_metrics
from launcher.training import checkpoint
from launcher.training import trainer as building
from launcher.training.trainer import Trainer, build_trainer
from tests.networks import tiny
from tests.trainers import OPTIMIZERS, SIDE_FOR_BF16, build, outcomes, small_config, state_of, steps, tensors, train_all
from tests.two_ranks import on_two_ranks

BAD = 2
AVERAGED = {
    "ema": ["algorithms=[ema,sam]", "algorithms.ema.update_interval=1ba", "algorithms.sam.interval=3"],
    "swa": ["algorithms=[swa]", "algorithms.swa.start=0ba", "algorithms.swa.update_interval=1ba"],
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build_model", tiny)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Zeros of two signs differ."""
    ours, theirs = (tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in (first, second))
    return torch.equal(ours, theirs)


def spoil(run: Trainer, *numbers: int) -> None:
    """Make the loss of some steps NaN, by their numbers."""
    inner = run.train_step.gradients

    def gradients(batch: Any, **how: bool) -> Tensor:
        loss = run.train_step.loss
        if batch.moment.step in numbers:
            run.train_step.objective.loss = lambda logits, targets: loss(logits, targets) * float("nan")
        try:
            return inner(batch, **how)
        finally:
            run.train_step.objective.loss = loss

    run.train_step.gradients = gradients


# note: an optimizer that averages is not combined with a second average
CASES = [case for case in itertools.product(OPTIMIZERS, AVERAGED, ["fp32", "fp16"]) if "schedule_free" not in case[0]]
CASES += [("schedule_free_adamw", "itself", precision) for precision in ("fp32", "fp16")]


@pytest.mark.parametrize(("optimizer", "averaged", "precision"), [*CASES, ("sgd", "ema", "bf16")])
def test_no_bit_changes(optimizer: str, averaged: str, precision: str) -> None:
    averaging = AVERAGED.get(averaged, ["algorithms=[]"])
    words = [*averaging, f"optimizer={optimizer}", f"precision={precision}", "schedule.warmup=0ba"]
    words += ["optimizer.interval=1"] * (optimizer == "soap") + [SIDE_FOR_BF16] * (precision == "bf16")
    run = build(*words)
    steps(run, BAD)
    for tensor in tensors([run.train_step.model.state_dict(), run.train_step.optimizer.state_dict()["state"]]):
        if tensor.ndim:
            tensor.view(-1)[0] = -0.0
    before = state_of(run)
    spoil(run, BAD)
    (bad,) = outcomes(run, 1)
    # note: the host has not asked yet, so that the device leaves out the step after it too
    outcomes(run, 1)
    assert not bad.report().finite
    assert all(map(same_bits, state_of(run), before))
    run.next_step -= 1
    assert outcomes(run, 1)[0].report().finite
    assert any(not torch.equal(*pair) for pair in zip(state_of(run), before, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_first_step_that_is_left_out_leaves_a_fresh_optimizer(optimizer: str) -> None:
    words = ["algorithms=[]", *f"optimizer={optimizer}".split(), "schedule.warmup=0ba"]
    spoilt, whole = build(*words), build(*words)
    spoil(spoilt, 0)
    assert not outcomes(spoilt, 1)[0].report().finite
    whole.next_step = 1
    assert steps(spoilt, 3) == steps(whole, 3)
    assert all(map(torch.equal, state_of(spoilt), state_of(whole)))


def test_the_loop_goes_on_after_it_and_keeps_the_state_of_before(tmp_path: Path) -> None:
    words = ["algorithms=[ema]", "algorithms.ema.update_interval=1ba", "schedule.warmup=0ba"]
    words += ["logger.interval=1ba", "logger.tensorboard=false", "eval_every=3ep"]
    run, whole = build(*words), build(*words)
    spoil(run, BAD, BAD + 1)
    folder = RunFolder(tmp_path)
    train_all(run, folder)
    losses = steps(whole, BAD)
    kept = checkpoint.load(folder.checkpoints / f"replay-{BAD:08}.pt")
    assert kept["step"] == BAD
    assert all(map(torch.equal, tensors(kept["model"]), tensors(whole.state_dict()["model"])))
    whole.next_step = BAD + 2
    losses += [float("nan")] * 2 + steps(whole, whole.plan.total_steps - whole.next_step)
    assert all(map(torch.equal, state_of(run), state_of(whole)))
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows if row["kind"] == "nonfinite"] == [BAD, BAD + 1]
    lines = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    assert lines == [(number, None if loss != loss else loss) for number, loss in enumerate(losses, 1)]


def _differ(rank: int, folder: Path) -> None:
    """Rank 1's loss is NaN by a constant, so that its gradients are finite; then it alone is asked to stop."""
    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    building.build_model = tiny
    run = build_trainer(small_config("ema"), Ranks(rank, 2, rank, 2, torch.device("cpu")))
    loss, told = run.train_step.loss, []
    for number in range(3):
        constant = torch.nan if rank == 1 and number == 1 else 0.0
        run.train_step.objective.loss = lambda logits, targets, c=constant: loss(logits, targets) + c
        images, labels, indices = next(iter(run.rest_of_epoch()))
        before = state_of(run)
        moment = run.moment(run.next_step)
        report = run.train_step(images, labels, indices, moment, Requests(rank == 1 and number == 2)).report()
        same = all(map(torch.equal, state_of(run), before))
        told.append([report.finite, report.requests.stop, same])
        run.next_step += 1
    (folder / f"{rank}.json").write_text(json.dumps(told))


def test_ranks_leave_out_a_step_and_hear_of_a_stop_together(tmp_path: Path) -> None:
    on_two_ranks(_differ, tmp_path)
    expected = [[True, False, False], [False, False, True], [True, True, False]]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [expected] * 2
