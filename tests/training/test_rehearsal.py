"""Before training, `launch.rehearsal=on` runs every kind of step that follows, and changes no bit of the run."""

from typing import Any

import pytest
import torch
from torch import nn

from launcher.training import trainer
from launcher.training.rehearsal import rehearse_run
from launcher.training.trainer import Trainer
from tests.networks import tiny
from tests.trainers import EARLY, assert_same_state, build, steps

RESIZING = ["algorithms.progressive_resizing.size_multiple=1", "dataset.native_size=32"]
HOT = ["recipe=hot", *RESIZING, "algorithms.sam.interval=2", "device_batch_size=4", "eval_batch_size=16"]
RUNS = {
    "hot": [*HOT, "algorithms.stochastic_depth=on"],
    "choosing": ["algorithms=[selective_backprop,progressive_resizing,mixup]", *EARLY["selective_backprop"], *RESIZING],
    "freezing": ["algorithms=[layer_freezing]", *EARLY["layer_freezing"]],
    "schedule_free": ["optimizer=schedule_free_adamw"],
    "dropout": ["model=timm", "model.architecture=test_resnet", "model.drop_rate=0.5", "dataset.native_size=64"],
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    build_model = trainer.build_model
    monkeypatch.setattr(
        trainer, "build_model", lambda model, *args: (build_model if model.name == "timm" else tiny)(model, *args)
    )


def watched(run: Trainer) -> list[Any]:
    """Return a list that grows by the shape of the images of each pass, and whether it updates statistics."""
    passes: list[Any] = []
    norms = [one for one in run.train_step.model.modules() if isinstance(one, nn.BatchNorm2d)]
    run.train_step.objective.register_forward_pre_hook(
        lambda _, inputs: passes.append((inputs[0].shape, inputs[0].stride(), norms[0].track_running_stats))
    )
    return passes


@pytest.mark.parametrize("name", RUNS)
def test_a_rehearsed_run_has_the_same_bits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain, run = build(*RUNS[name]), build(*RUNS[name], "launch.rehearsal=on")
    rehearse_run(plain)
    assert not capsys.readouterr().out
    rehearse_run(run)
    assert capsys.readouterr().out.startswith("rehearsed ")
    generator = torch.get_rng_state()
    assert steps(run, 5) == steps(plain, 5)
    assert_same_state(run, plain)
    assert name == "dropout" or torch.equal(generator, torch.get_rng_state())


def test_every_pass_of_the_remaining_steps_is_rehearsed_once() -> None:
    run = build(*HOT, "launch.rehearsal=on")
    passes = watched(run)
    rehearse_run(run)
    rehearsed, count = set(passes), run.plan.total_steps
    assert len(passes) == len(rehearsed)
    passes.clear()
    steps(run, count)
    assert set(passes) <= rehearsed
    assert len({shape for shape, _, _ in passes}) == len({shape for shape, _, _ in rehearsed}) > 5
    passes.clear()
    rehearse_run(run)
    assert not passes
    run.next_step = count - 1
    rehearse_run(run)
    assert {shape[-1] for shape, _, _ in passes} == {run.plan.view(count - 1)}
