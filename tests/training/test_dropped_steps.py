"""A non-finite step is dropped on the device: it changes nothing, and the run continues without it."""

import itertools
import json
import os
from pathlib import Path

import pytest
import torch

from launcher.rank.group import Ranks
from launcher.rank.signs import Requests
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import trainer as building
from launcher.training.trainer import build_trainer
from tests.covering import sweep
from tests.networks import tiny
from tests.trainers import (
    OPTIMIZERS,
    SIZE_FOR_BF16,
    build,
    make_nan,
    outcomes,
    same_bits,
    small_config,
    state_of,
    steps,
    tensors,
    train_all,
)
from tests.two_ranks import on_two_ranks

BAD = 2
AVERAGED = {
    "ema": ["algorithms=[ema,sam]", "algorithms.ema.update_interval=1ba", "algorithms.sam.interval=3"],
    "swa": ["algorithms=[swa]", "algorithms.swa.start=0ba", "algorithms.swa.update_interval=1ba"],
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build_model", tiny)


# note: an optimizer that averages is not combined with a second average
CASES = [case for case in itertools.product(OPTIMIZERS, AVERAGED, ["fp32", "fp16"]) if "schedule_free" not in case[0]]
CASES += [("schedule_free_adamw", "itself", precision) for precision in ("fp32", "fp16")]
CASES = sweep(CASES, [case for case in CASES if case[1:] in (("ema", "fp32"), ("itself", "fp32")) or case[0] == "sgd"])


@pytest.mark.parametrize(("optimizer", "averaged", "precision"), [*CASES, ("sgd", "ema", "bf16")])
def test_a_dropped_step_changes_no_bit(optimizer: str, averaged: str, precision: str) -> None:
    averaging = AVERAGED.get(averaged, ["algorithms=[]"])
    words = [*averaging, f"optimizer={optimizer}", f"precision={precision}", "schedule.warmup=0ba"]
    words += ["optimizer.interval=1"] * (optimizer in ("soap", "shampoo")) + [SIZE_FOR_BF16] * (precision == "bf16")
    run = build(*words)
    steps(run, BAD)
    for tensor in tensors([run.train_step.model.state_dict(), run.train_step.optimizer.state_dict()["state"]]):
        if tensor.ndim:
            tensor.view(-1)[0] = -0.0
    before = state_of(run)
    make_nan(run, BAD)
    (bad,) = outcomes(run, 1)
    # note: the host has not read the result yet, so the device also drops the next step
    outcomes(run, 1)
    assert not bad.report().finite
    assert all(map(same_bits, state_of(run), before))
    run.next_step -= 1
    assert outcomes(run, 1)[0].report().finite
    assert any(not torch.equal(*pair) for pair in zip(state_of(run), before, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_dropped_first_step_keeps_the_optimizer_initial(optimizer: str) -> None:
    words = ["algorithms=[]", f"optimizer={optimizer}", "schedule.warmup=0ba"]
    dropping, whole = build(*words), build(*words)
    make_nan(dropping, 0)
    assert not outcomes(dropping, 1)[0].report().finite
    whole.next_step = 1
    assert steps(dropping, 3) == steps(whole, 3)
    assert all(map(torch.equal, state_of(dropping), state_of(whole)))


def test_the_loop_continues_after_dropped_steps(tmp_path: Path) -> None:
    words = ["algorithms=[ema]", "algorithms.ema.update_interval=1ba", "schedule.warmup=0ba"]
    words += ["logger.interval=1ba", "logger.tensorboard=false", "eval_every=3ep"]
    run, whole = build(*words), build(*words)
    make_nan(run, BAD, BAD + 1)
    folder = RunFolder(tmp_path)
    train_all(run, folder)
    losses = steps(whole, BAD)
    whole.next_step = BAD + 2
    losses += [float("nan")] * 2 + steps(whole, whole.plan.total_steps - whole.next_step)
    assert all(map(torch.equal, state_of(run), state_of(whole)))
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows if row["kind"] == "nonfinite"] == [BAD, BAD + 1]
    lines = [(row["step"], row["loss"]) for row in rows if row["kind"] == "train"]
    assert lines == [(number, None if loss != loss else loss) for number, loss in enumerate(losses, 1)]


def _differ(rank: int, folder: Path) -> None:
    """Add a constant NaN to rank 1's loss, which keeps its gradients finite; then only rank 1 requests a stop."""
    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    building.build_model = tiny
    run = build_trainer(small_config("ema"), Ranks(rank, 2, rank, 2, torch.device("cpu")))
    loss, reports = run.train_step.loss, []
    for number in range(3):
        constant = torch.nan if rank == 1 and number == 1 else 0.0
        run.train_step.objective.loss = lambda logits, targets, c=constant: loss(logits, targets) + c
        images, labels, indices = next(iter(run.rest_of_epoch()))
        before = state_of(run)
        moment = run.moment(run.next_step)
        report = run.train_step(images, labels, indices, moment, Requests(rank == 1 and number == 2)).report()
        same = all(map(torch.equal, state_of(run), before))
        reports.append([report.finite, report.requests.stop, same])
        run.next_step += 1
    (folder / f"{rank}.json").write_text(json.dumps(reports))


def test_all_ranks_drop_the_same_step_and_stop_together(tmp_path: Path) -> None:
    on_two_ranks(_differ, tmp_path)
    expected = [[True, False, False], [False, False, True], [True, True, False]]
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)] == [expected] * 2
