import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launcher.errors import UserError
from launcher.plan import plan as planning
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.training import trainer as building
from launcher.training.precision import LossScaler, Precision
from tests.networks import tiny
from tests.trainers import build, outcomes, state_of, steps, train_all


@pytest.mark.parametrize("policy", ["skip", "stop"])
@pytest.mark.parametrize("algorithms", ["", "sam"])
def test_the_loss_scaler_handles_overflows_under_any_policy(
    policy: str, algorithms: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale halves at each step whose gradients overflow in fp16."""
    monkeypatch.setattr(building, "build_model", tiny)
    monkeypatch.setattr(Precision, "scaler", lambda self: LossScaler("cpu", init_scale=2.0**40))
    words = [f"algorithms=[{algorithms}]", *["algorithms.sam.interval=1"] * bool(algorithms), "schedule.warmup=0ba"]
    run = build(*words, "precision=fp16", f"nonfinite.policy={policy}", "logger.tensorboard=false")
    folder = RunFolder(tmp_path)
    run.next_step = run.plan.total_steps - 2
    before = [p.detach().clone() for p in run.train_step.model.parameters()]
    train_all(run, folder)
    assert run.next_step == run.plan.total_steps
    assert run.train_step.scaler.get_scale() == 2.0**38
    assert all(map(torch.equal, run.train_step.model.parameters(), before))
    assert not [row for row in read_metrics(folder.metrics) if row["kind"] == "nonfinite"]


def test_non_finite_gradients_with_a_finite_loss_are_detected() -> None:
    run = build("algorithms=[]", "schedule.warmup=0ba")
    steps(run, 1)
    before = state_of(run)
    handle = run.train_step.model.conv1.weight.register_hook(lambda gradient: gradient * float("inf"))
    (outcome,) = outcomes(run, 1)
    handle.remove()
    report = outcome.report()
    assert math.isfinite(report.loss)
    assert not report.finite
    assert all(map(torch.equal, state_of(run), before))


@pytest.mark.parametrize("passes", [1, 10_000])
def test_cudnn_tunes_in_long_training_and_never_in_evaluation(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_TUNED_PASSES", passes)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    run = build("algorithms=[]", "schedule.warmup=0ba")
    for _ in range(2):
        steps(run, 1)
        assert torch.backends.cudnn.benchmark is (passes == 1)
        run.evaluate(should_stop=lambda: False)
        assert torch.backends.cudnn.benchmark is False


def test_an_incomplete_state_and_one_of_another_run_are_refused() -> None:
    run = build("algorithms=[]", "schedule.warmup=0ba")
    state = run.state_dict()
    with pytest.raises(UserError, match="does not match this run"):
        run.load_state_dict({key: value for key, value in state.items() if key != "optimizer"})
    with pytest.raises(UserError, match="does not match this run"):
        run.load_state_dict({**state, "model": {**state["model"], "fc.weight": torch.zeros(1)}})
    with pytest.raises(UserError, match="belong to different runs"):
        run.load_state_dict({**state, "config": "another"})
    with pytest.raises(UserError, match="rolled back; resume the run with the version of train that wrote it"):
        run.load_state_dict({**state, "lr_factor": 0.5})
    run.load_state_dict(state)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        torch.AcceleratorError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: device-side assert triggered"),
        dist.DistBackendError("remote process has failed"),
    ],
)
def test_a_device_error_while_loading_is_not_an_error_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def fail(*_: object) -> None:
        raise error

    run = build("algorithms=[]", "schedule.warmup=0ba")
    state = run.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(run.train_step.optimizer, "load_state_dict", fail)
        with pytest.raises(type(error)):
            run.load_state_dict(state)
    # note: torch wraps errors in the model's own loading
    monkeypatch.setattr(torch.Tensor, "copy_", fail)
    with pytest.raises(RuntimeError, match="While copying the parameter"):
        run.load_state_dict(state)
