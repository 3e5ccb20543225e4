"""Optimizers, schedules, losses and transforms by `_target_`, of torch, torchvision and the user's own."""

import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.config.keys import kinds
from launcher.config.targets import Called
from launcher.data.batch import Moment
from launcher.errors import UserError
from launcher.optimizers.base import build_optimizer, set_lr
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.training.trainer import Trainer
from tests.own_code import FORMULAS, name_code
from tests.runs import same
from tests.trainers import assert_resumes_to_the_same_bits, build

ADAMW = ["optimizer._target_=torch.optim.AdamW", "optimizer.lr=0.01", "optimizer.betas=[0.8,0.9]"]
RAMP = ["schedule._target_=nets.ramp", "schedule.power=2.0"]


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_code(tmp_path, monkeypatch, FORMULAS)
    for name, text in {
        "optimizer/adam_of_torch": "_target_: torch.optim.AdamW\nbetas: [0.8, 0.9]\n",
        "optimizer/sign": "_target_: nets.Sign\nlr: 0.001\n",
        "schedule/ramp": "_target_: nets.ramp\npower: 2.0\n",
        "loss/soft": "_target_: nets.soft\n",
        "loss/smooth": "_target_: torch.nn.CrossEntropyLoss\nlabel_smoothing: 0.1\n",
        "algorithms/turned": "_target_: torchvision.transforms.v2.RandomRotation\ndegrees: 30\n",
    }.items():
        path = tmp_path / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_an_optimizer_of_torch_steps_as_it_does_alone() -> None:
    config = compose(["code=nets.py", "optimizer=adam_of_torch", "optimizer.weight_decay=0.1"]).config.optimizer
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizer = build_optimizer(config, ours, 0.01)
    expected = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    for step in range(4):
        set_lr(optimizer, torch.tensor(0.01 / (step + 1)))
        set_lr(expected, torch.tensor(0.01 / (step + 1)).item())
        for network, one in ((ours, optimizer), (theirs, expected)):
            one.zero_grad()
            network(torch.full((4, 3), step + 1.0)).square().sum().backward()
        if step == 2:
            # note: a dropped step
            optimizer.found_inf, before = torch.ones(()), state_of(optimizer.state_dict())
            optimizer.step()
            assert same(before, state_of(optimizer.state_dict()))
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
        expected.step()
        assert same(ours.state_dict(), theirs.state_dict())


def state_of(state: dict[str, Any]) -> Any:
    buffer = io.BytesIO()
    torch.save(state["state"], buffer)
    buffer.seek(0)
    return torch.load(buffer)


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=sign", "schedule=ramp", "loss=soft", "algorithms=[turned,mixup]"],
        ["optimizer=adam_of_torch", "loss=smooth", "algorithms.turned.at=change_batch"],
    ],
)
def test_runs_resume_to_the_same_bits(words: list[str], tmp_path: Path) -> None:
    assert_resumes_to_the_same_bits(["code=nets.py", *words, "optimizer.lr=0.01"], tmp_path / "step-00000003.pt")


def test_a_schedule_follows_its_function_after_the_warmup() -> None:
    words = ["code=nets.py", "dataset=shapes", "batch_size=64", "epochs=4", "schedule=ramp", "schedule.warmup=1ep"]
    plan = plan_for(compose(words).config, 1)
    assert plan.steps_per_epoch == 62
    assert plan.lr_multiplier(31) == 0.5
    assert plan.lr_multiplier(62 + 93) == 0.25


def loss_of(*words: str) -> Any:
    config = compose(["code=nets.py", *words]).config
    return config.loss.function(config.task)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (group, name)
        for group in ("optimizer", "loss")
        for kind in kinds(group)
        if issubclass(kind, Called)
        for name in kind.option_names()
    ],
)
def test_a_packaged_option_has_keywords_of_its_target(group: str, name: str) -> None:
    values = getattr(compose([f"{group}={name}"]).config, group)
    inspect.signature(values.called).bind_partial(**values.keywords())


def test_a_loss_gets_outputs_in_float32_and_targets() -> None:
    outputs, targets = torch.randn(4, 10).bfloat16(), torch.arange(4)
    expected = F.cross_entropy(outputs.float(), targets, label_smoothing=0.1)
    assert loss_of("loss=smooth")(outputs, targets) == expected
    assert loss_of("loss=soft", "loss.smoothing=0.1")(outputs, targets) == expected


def test_a_transform_draws_by_image_and_epoch_alone() -> None:
    change = change_of(build("code=nets.py", "algorithms=[turned]"))
    image = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    first = change(image, 3, Moment(42, 0, 0, 1))
    torch.manual_seed(8)
    assert np.array_equal(first, pickle.loads(pickle.dumps(change))(image, 3, Moment(42, 0, 5, 9, 1)))
    assert not np.array_equal(first, change(image, 4, Moment(42, 0, 0, 1)))
    assert not np.array_equal(first, change(image, 3, Moment(42, 1, 0, 1)))


def change_of(run: Trainer) -> Any:
    change = run.train_step.engine.change_image
    assert change is not None
    return change


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["loss._target_=torch.nn.CrossEntropyLoss", "loss.reduction=none"],
            r"fails: TypeError: it returns shape \[4\]",
        ),
        (["loss._target_=nets.ramp"], r"fails: RuntimeError: .* \(nets.py:\d+\)"),
    ],
)
def test_a_loss_that_fails_is_named(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        loss_of(*words)(torch.randn(4, 10), torch.arange(4))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["optimizer=sign", "optimizer.momentun=1.0"], r"optimizer.momentun=1.0 .*did you mean optimizer.momentum\?"),
        (["optimizer=sign", "optimizer.momentum=much"], "optimizer.momentum=much .*must be a number"),
        (["optimizer=sign", "optimizer.weight_decay=0.1"], "nets.Sign has no weight decay"),
        (["schedule._target_=nets.torch.load"], "schedule._target_=nets.torch.load .*is not in code that is named"),
        (["loss._target_=os.system"], "is neither in torch.nn, .* nor in code that is named"),
        (["callbacks.c._target_=timm.models._helpers.load_state_dict"], "is not in code that is named"),
        (["metrics.m._target_=torchmetrics.MetricCollection"], "is neither in torchmetrics.aggregation"),
        (["loss._target_=torch.nn.NoLoss"], "is not a class or function there"),
        (["algorithms.turned.at=after_step"], "must be one of change_image, change_batch"),
        (["algorithms.turned.angle=3"], "no such key; set one of at, "),
        (["algorithms.odd.degrees=3"], "no such algorithm"),
        (["algorithms.odd._target_=torchvision.io.read_image"], "is neither in"),
        (["schedule._target_=nets.falling"], r"fails at progress 0\.6: ValueError: it returns -0\.0"),
    ],
)
def test_values_are_checked_before_the_start(words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check(plan_for(compose(["code=nets.py", "dataset=shapes", *words]).config, 1), {})
