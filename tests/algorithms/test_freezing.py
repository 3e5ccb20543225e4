import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from launcher.algorithms.layer_freezing import frozen_layers, layers_of
from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.errors import UserError
from launcher.models.parameters import owned_parameters, parameters_of_head
from launcher.plan.checks import check
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.training import trainer
from launcher.training.evaluation import outside_steps
from launcher.training.rehearsal import learning_parameters
from tests.networks import tiny
from tests.trainers import EARLY, SMALL, build, steps
from tests.two_ranks import on_ranks


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0), (0.5, 0), (0.55, 3), (0.75, 16), (0.9, 25), (1.0, 32)])
def test_the_number_of_frozen_layers_grows_linearly(progress: float, expected: int) -> None:
    assert frozen_layers(41, progress, start=0.5, final_fraction=0.8) == expected


@pytest.mark.parametrize(("layers", "expected"), [(5, 1), (41, 19), (54, 26)])
def test_the_number_of_frozen_layers_is_composers_where_rounding_decides(layers: int, expected: int) -> None:
    """Composer multiplies its level by the fraction of the freezing that is done, here 5 / 9 after 12 of 18 epochs."""
    done = (12 / 18 - 0.25) / (1 - 0.25)
    assert int(0.9 * done * (layers - 1)) == expected
    assert frozen_layers(layers, 12 / 18, start=0.25, final_fraction=0.9) == expected


def test_an_algorithm_acts_before_each_step_without_changing_which_parameters_learn() -> None:
    run = build("algorithms=[layer_freezing]")
    (freezing,), seen = run.train_step.engine.active.values(), []
    freezing.changes_learning_parameters = False
    freezing.before_step = lambda model, moment: seen.append(moment.step)  # type: ignore[method-assign]
    steps(run, 2)
    assert seen == [0, 1]


def learn(model: nn.Module, algorithm: Any, loaded: Any) -> set[str]:
    """Return the names of the parameters that a step changes."""
    # note: with momentum and decay a gradient of zero still changes the weights
    values = compose(["optimizer=decoupled_sgd", "optimizer.momentum=0.9"]).config.optimizer
    optimizer = values.of([{"params": list(model.parameters()), "weight_decay": 0.1}], 0.1)  # type: ignore[attr-defined]
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    algorithm.before_step(model, loaded.moment)
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(model(loaded.inputs), loaded.targets).backward()
    optimizer.step()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


@pytest.mark.parametrize(
    ("start", "fraction", "counts"),
    [(0.5, 1.0, ((0, 0), (75, 20), (99, 39))), (0.25, 0.9, ((25, 0), (70, 21), (99, 35)))],
)
def test_the_first_layers_stop_learning_and_the_last_always_learns(
    bound: Callable[..., Any],
    batch: Callable[..., Any],
    start: float,
    fraction: float,
    counts: tuple[tuple[int, int], ...],
) -> None:
    model = resnet18(num_classes=10)
    layers = layers_of(model)
    assert (layers[0], layers[-1], len(layers)) == (model.conv1, model.fc, 41)
    algorithm = bound("layer_freezing", start=start, final_fraction=fraction)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    own = [{names[id(parameter)] for parameter in layer.parameters(recurse=False)} for layer in layers]
    for step, frozen in counts:
        learning = learn(model, algorithm, batch(size=32, step=step))
        assert [not learning & layer for layer in own] == [True] * frozen + [False] * (41 - frozen)


def _learn(rank: int, algorithm: str, folder: Path) -> None:
    """Take steps on three ranks, and compare each with the average of every rank's own gradients."""
    torch.set_num_threads(1)
    trainer.build_model = tiny
    config = compose([*SMALL, "batch_size=12", "schedule.warmup=0ba", f"algorithms=[{algorithm}]", *EARLY[algorithm]])
    step = trainer.build_trainer(config.config, Ranks(rank, 3, rank, 3, torch.device("cpu"))).train_step
    sets = []
    for number in range(6):
        images = torch.from_numpy(
            np.random.default_rng([number, rank]).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
        )
        alone, labels = copy.deepcopy(step.model).requires_grad_(), torch.arange(4)
        step(images, labels, np.arange(4), Moment(0, number // 2, number, 6, rank)).report()
        F.cross_entropy(alone(step.task.prepare(outside_steps(images)).inputs), labels).backward()
        reduced = sum(p.numel() for bucket in step.buckets._buckets for p in bucket.parameters)
        assert reduced == sum(p.numel() for p in step.model.parameters() if p.requires_grad)
        sets.append(learning_parameters(step.model))
        for ours, own, learns in zip(step.model.parameters(), alone.parameters(), sets[-1], strict=True):
            dist.all_reduce(own.grad)
            if learns:
                torch.testing.assert_close(ours.grad, own.grad / 3)
            else:
                assert ours.grad is None
                assert torch.equal(ours, own)
    (folder / f"{rank}").write_text(str(len(set(sets))))


@pytest.mark.parametrize(("algorithm", "sets"), [("layer_freezing", 6), ("backbone_freezing", 2)])
def test_ranks_average_and_all_reduce_only_learning_parameters(algorithm: str, sets: int, tmp_path: Path) -> None:
    on_ranks(3, _learn, algorithm, tmp_path)
    assert [int((tmp_path / f"{rank}").read_text()) for rank in range(3)] == [sets] * 3


def test_only_the_head_learns_until_the_end_of_backbone_freezing(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("backbone_freezing", until="2.5ep")
    assert learn(model, algorithm, batch(size=32, step=24)) == {"fc.weight", "fc.bias"}
    assert learn(model, algorithm, batch(size=32, step=25)) == {name for name, _ in model.named_parameters()}


def test_layers_start_to_learn_in_stages_from_the_last_on(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model = resnet18(num_classes=10)
    algorithm = bound("backbone_freezing", until="4ep", stages=4)
    every, sets = {name for name, _ in model.named_parameters()}, []
    for step in (0, 9, 10, 20, 30, 39, 40):
        sets.append(learn(model, algorithm, batch(size=32, step=step)))
    assert sets[0] == sets[1] == {"fc.weight", "fc.bias"}
    assert all(one < other for one, other in itertools.pairwise(sets[1:5]))
    assert sets[4] == sets[5] < sets[6] == every
    # note: of nine layers, the stem and eight blocks, the last stage has two
    assert {name[:8] for name in sets[2] - sets[0]} == {"layer4.0", "layer4.1"}
    assert {"conv1.weight", "bn1.weight", "layer1.0.conv1.weight"}.isdisjoint(sets[4])
    assert {"layer2.0.conv1.weight"} <= sets[4]


def test_the_head_of_a_timm_model_is_recognized(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    """The last layer of timm's vision transformer has another name, and many of its layers are linear."""
    import timm

    model = timm.create_model("test_vit", num_classes=10, img_size=32)
    loaded = batch(size=32, step=0)
    assert learn(model, bound("backbone_freezing", until="1ba"), loaded) == {"head.weight", "head.bias"}


def checked(*words: str) -> None:
    config = compose(["dataset=shapes", "launch=cpu", *words]).config
    check(Plan(config, 1, config.dataset.train_samples), {})


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("architecture", ["resnet18", "timm", "timm batch norm"])
@pytest.mark.parametrize("algorithms", ["backbone_freezing", "backbone_freezing,selective_backprop"])
def test_a_linear_probe_runs_forward_in_evaluation_mode_and_backward_through_the_head_alone(
    architecture: str, algorithms: str
) -> None:
    models = {
        "timm": ["model=timm", "model.architecture=test_vit", "model.img_size=16", "model.drop_rate=0.5"],
        "timm batch norm": ["model=timm", "model.architecture=test_byobnet"],
    }
    until = ["algorithms.backbone_freezing.until=1dur", "algorithms.selective_backprop.start=0.0"]
    run = build(f"algorithms=[{algorithms}]", *until[: 1 + ("," in algorithms)], *models.get(architecture, []))
    model, head = run.train_step.model, parameters_of_head(run.train_step.model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    backward, forward = [], {}
    for name, _, module in owned_parameters(model):
        if module is not model:
            module.register_full_backward_hook(lambda *_, name=name: backward.append(name))
    model.register_forward_hook(lambda _, inputs, outputs: forward.update(inputs=inputs[0], outputs=outputs))
    steps(run, 1)
    after = model.state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == head
    assert set(backward) == head
    model.load_state_dict(before)
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model).eval()(forward["inputs"]), forward["outputs"])


def test_the_backbone_may_be_frozen_up_to_the_end_of_the_run() -> None:
    words = ["algorithms=[backbone_freezing]", "model.weights=runs/first"]
    checked(*words, "epochs=2")
    checked(*words, "epochs=1")
    checked(*words, "algorithms.backbone_freezing.until=1dur")
    with pytest.raises(UserError, match=r"freezing\.stages=4.*before until=1dur, the end of the run; set 1"):
        checked(*words, "algorithms.backbone_freezing.until=1dur", "algorithms.backbone_freezing.stages=4")
    with pytest.raises(UserError, match=r"freezing\.until=2ep.*longer than the run's 62 steps; set 0\.1dur, or 1dur"):
        checked(*words, "epochs=1", "algorithms.backbone_freezing.until=2ep")
    with pytest.raises(UserError, match=r"freezing\.stages=4.*more than the 2 steps of until=2ba; set fewer"):
        checked(*words, "epochs=2", "algorithms.backbone_freezing.until=2ba", "algorithms.backbone_freezing.stages=4")


@pytest.mark.parametrize(
    ("words", "need"),
    [
        (["algorithms=[backbone_freezing]"], r"algorithms\.backbone_freezing needs"),
        (["optimizer.backbone_lr=0.5"], r"optimizer\.backbone_lr=0\.5 needs"),
        (["optimizer.layer_decay=0.75"], r"optimizer\.layer_decay=0\.75 needs"),
        (["recipe=finetune"], r"algorithms\.backbone_freezing and optimizer\.backbone_lr=null need"),
    ],
)
def test_a_slower_or_frozen_backbone_needs_pretrained_weights(words: list[str], need: str) -> None:
    with pytest.raises(
        UserError, match=rf"^model\.weights=null: {need} pretrained weights; set model.weights to [^\n]*timm[^\n]*$"
    ):
        checked(*words)
    checked(*words, "model.weights=torchvision")
    checked(*words, "algorithms.backbone_freezing=off", "optimizer.backbone_lr=1.0", "optimizer.layer_decay=1.0")
