"""Metrics of several labels and of numbers against torchmetrics, over three ranks, and what both tasks refuse."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.tasks import Task, build_task
from launcher.tasks.multilabel import Multilabel, best_threshold
from launcher.training.evaluation import Totals, evaluate
from tests.trainers import SMALL, build, steps
from tests.two_ranks import on_ranks

CPU = torch.device("cpu")
IMAGES, OUTPUTS = 41, 6
WORDS = {
    "multilabel": ["dataset=scenes", "task=multilabel", "loss=bce"],
    "regression": ["dataset=scene_colours", "task=regression", "loss=mse"],
}


def task_of(name: str, *words: str, **facts: Any) -> Task:
    config = compose([*WORDS[name], *words]).config
    return build_task(config, facts=facts)


def results(name: str) -> tuple[Tensor, Tensor]:
    """Return outputs with ties, and labels of which one class has no image, or numbers far from 0."""
    random = torch.Generator().manual_seed(1)
    outputs = torch.randn(IMAGES, OUTPUTS, generator=random).mul(4).round() / 4
    if name == "regression":
        return outputs, outputs * 3 + 1e4 + torch.randn(IMAGES, OUTPUTS, generator=random)
    labels = (torch.rand(IMAGES, OUTPUTS, generator=random) < outputs.sigmoid() * 0.6).to(torch.uint8)
    labels[:, 2] = 0
    return outputs, labels


def expected(name: str, outputs: Tensor, labels: Tensor) -> list[float]:
    """Return the first metrics by torchmetrics."""
    from torchmetrics.functional import r2_score
    from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

    if name == "regression":
        truth, predicted = labels.double(), outputs.double() * 3 + 1e4
        r2 = r2_score(predicted - 1e4, truth - 1e4, multioutput="uniform_average").item()
        return [(truth - predicted).abs().mean().item(), r2]
    precisions = multilabel_average_precision(
        outputs, labels.long(), num_labels=OUTPUTS, average="none", thresholds=None
    )
    scores = outputs.sigmoid()
    f1 = [
        multilabel_f1_score(scores, labels.long(), num_labels=OUTPUTS, average="micro", threshold=threshold).item()
        for threshold in (scores.unique() - 1e-5).tolist()
    ]
    return [precisions[[0, 1, 3, 4, 5]].mean().item(), max(f1)]


FACTS = {"multilabel": {}, "regression": {"shift": [1e4] * OUTPUTS, "scale": [3.0] * OUTPUTS}}


@pytest.mark.parametrize("name", WORDS)
def test_metrics_are_those_of_torchmetrics_for_any_order(name: str) -> None:
    task, (outputs, labels) = task_of(name, **FACTS[name]), results(name)
    first = metrics_of(task, outputs, labels)
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(2))
    assert list(first.values())[:2] == pytest.approx(expected(name, outputs, labels), rel=1e-6)
    assert metrics_of(task, outputs[order], labels[order]) == pytest.approx(first, rel=1e-12)


def test_r2_of_a_number_that_never_changes_is_that_of_torchmetrics() -> None:
    """scikit-learn has the same: 1 if all predictions are right, else 0."""
    from torchmetrics.functional import r2_score

    task = task_of("regression", shift=[0.0] * 3, scale=[1.0] * 3)
    labels = torch.randn(997, 3, generator=torch.Generator().manual_seed(1))
    labels[:, 1:] = -0.1328795701265335
    outputs = labels + torch.tensor([0.1, 0.1, 0.0])
    expected = [r2_score(*pair, multioutput="uniform_average").item() for pair in zip(outputs.T, labels.T, strict=True)]
    assert metrics_of(task, outputs, labels)["r2"] == pytest.approx(sum(expected) / 3)
    details = task.details(["a", "b", "c"], with_images=False)
    details.add(outputs, task.targets(labels))
    assert [row["r2"] for row in details.values()["by_number"]] == pytest.approx(expected)


def metrics_of(task: Task, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    totals = Totals(task, CPU)
    for part in torch.arange(len(outputs)).split(7):
        totals.add(outputs[part], task.targets(labels[part]))
    result = totals.over_ranks()
    assert result is not None
    return result.metrics


@pytest.mark.slow
def test_three_ranks_have_the_metrics_of_one() -> None:
    on_ranks(3, compare_with_one)


class Outputs(nn.Module):
    """Returns the outputs of the images whose pixels are their numbers."""

    def forward(self, images: Tensor) -> Tensor:
        return self.outputs[images[:, 0, 0, 0].long()]


def compare_with_one(rank: int) -> None:
    # note: the last rank has no image
    for name in WORDS:
        task, (outputs, labels) = task_of(name, **FACTS[name]), results(name)
        model = Outputs()
        model.outputs = outputs
        mine = [part for part in torch.arange(IMAGES).split(6) if rank < 2][rank::2]

        def batches(mine: list[Tensor] = mine, labels: Tensor = labels) -> Iterator[tuple[Tensor, Tensor, Any]]:
            for part in mine:
                yield part.view(-1, 1, 1, 1).expand(-1, 3, 2, 2), labels[part], part.numpy()

        with patch.object(type(task), "prepare", Task.prepare):
            result = evaluate(model, task, batches(), nullcontext, CPU)
        assert result is not None
        first = list(result.metrics.values())[:2]
        assert first == pytest.approx(expected(name, outputs, labels), rel=1e-6)
        assert result.samples == IMAGES


def test_the_threshold_lies_between_two_scores_and_has_the_best_f1() -> None:
    scores, truth = np.array([[0.9, 0.2], [0.6, 0.4]]), np.array([[True, False], [True, False]])
    assert best_threshold(scores, truth) == (1.0, pytest.approx(0.5))
    assert best_threshold(scores, ~truth)[1] == pytest.approx(0.1)


def test_other_images_are_judged_by_the_threshold_of_the_validation_images() -> None:
    from torchmetrics.functional.classification import multilabel_f1_score

    task, (outputs, labels) = task_of("multilabel", threshold=0.62), results("multilabel")
    scores = outputs.sigmoid()
    f1 = multilabel_f1_score(scores, labels.long(), num_labels=OUTPUTS, average="micro", threshold=0.62).item()
    chosen = metrics_of(task_of("multilabel"), outputs, labels)
    assert metrics_of(task, outputs, labels) == pytest.approx({"map": chosen["map"], "f1": f1, "threshold": 0.62})
    assert f1 < chosen["f1"]


def test_class_weights_multiply_the_loss_of_each_class() -> None:
    task, logits, targets = task_of("multilabel"), torch.randn(5, 3), torch.tensor([[0, 1.0, 0.5]] * 5)
    weights = torch.tensor([1.0, 4.0, 0.25])
    terms = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    torch.testing.assert_close(task.loss(logits, targets, weights=weights), (terms * weights).sum() / 5)


def test_predictions_are_all_labels_from_the_threshold_on() -> None:
    task = task_of("multilabel", threshold=0.6)
    assert isinstance(task, Multilabel)
    outputs = torch.tensor([[0.0, 3.0, 1.0], [-1.0, -2.0, 0.0]])
    first, second = task.predictions(outputs, ["a", "b", "c"], 1)
    assert [name for name, _ in first] == ["b", "c"]
    assert second == []


def test_label_smoothing_of_several_classes_moves_each_to_one_half() -> None:
    run = build(*WORDS["multilabel"], "algorithms=[label_smoothing]", "algorithms.label_smoothing.smoothing=0.2")
    images, labels, indices = next(iter(run.rest_of_epoch()))
    from launcher.data.batch import Batch

    made = run.train_step.prepare(Batch(images, labels, indices, run.moment(0)))
    torch.testing.assert_close(made.targets, labels * 0.8 + 0.1)


def test_losses_of_numbers_follow_their_formula() -> None:
    facts = {"shift": [100.0], "scale": [10.0]}
    outputs, labels = torch.tensor([[0.5], [-3.0]]), torch.tensor([[110.0], [90.0]])
    # note: normalized, the labels are 1 and -1, and the errors 0.5 and 2
    for words, expected in (["loss=mse"], 2.125), (["loss=l1"], 1.25), (["loss=huber", "loss.delta=1.5"], 1.0):
        task = task_of("regression", *words, **facts)
        assert task.loss(outputs, task.targets(labels)).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["mse", "l1", "huber"])
def test_numbers_are_learnt_normalized_and_predicted_in_their_unit(loss: str) -> None:
    run = build(*WORDS["regression"], f"loss={loss}", "algorithms=[mixup,ema]", "algorithms.ema.update_interval=1ba")
    assert all(np.isfinite(value) for value in steps(run, 2))
    labels, task = torch.from_numpy(run.loaders.train.reader.labels), run.train_step.task
    targets = task.targets(labels)
    torch.testing.assert_close(targets.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.std(0, correction=0), torch.ones(3))
    (named, *_) = task.predictions(targets, ["red", "green", "blue"], 1)
    assert dict(named) == pytest.approx(dict(zip(("red", "green", "blue"), labels[0].tolist(), strict=True)))
    assert run.state_dict()["task"]["scale"] == pytest.approx(labels.double().std(0, correction=0).tolist())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["task=multilabel", "dataset=scenes"],
            r"loss=cross_entropy: task=multilabel has no such loss; set loss=bce or loss=focal",
        ),
        (
            [*WORDS["regression"], "loss=bce"],
            r"task=regression has no such loss; set loss=huber or loss=l1 or loss=mse",
        ),
        ([*WORDS["regression"], "algorithms=[cutmix]"], r"algorithms\.cutmix=on: has no meaning with task=regression"),
        ([*WORDS["regression"], "algorithms=[label_smoothing]"], r"label_smoothing=on: has no meaning"),
        ([*WORDS["multilabel"], "algorithms=[mixup]", "algorithms.mixup.smoothed=first"], "needs one class an image"),
        ([*WORDS["multilabel"], "dataset.sampling=balanced"], "has no single class an image to balance; set uniform"),
        (["loss=mse"], "task=classification has no such loss; set loss=bce or loss=cross_entropy or loss=focal"),
        (
            [*WORDS["multilabel"], "target=top1:0.5"],
            "task=multilabel has no metric top1, only map, f1; did you mean map:0.5",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_remedy(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        check(plan_for(compose([*SMALL, *words]).config, 1), {})
