"""The user's metrics: exact over batches and ranks, beside those of the task, and NaN after an error."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_f1_score

from launcher.config import code
from launcher.config.compose import compose
from launcher.errors import UserError
from launcher.tasks import build_task
from launcher.training.evaluation import Evaluation, evaluate
from launcher.training.own_metrics import check_metrics
from tests.own_code import METRICS, name_code
from tests.two_ranks import on_ranks

CPU = torch.device("cpu")
F1 = ["metrics.f1._target_=torchmetrics.F1Score", "metrics.f1.task=multiclass", "metrics.f1.average=macro"]
WORDS = ["metrics.top3._target_=nets.top2", "metrics.top3.k=3", *F1, "metrics.f1.num_classes=10"]
NOT_TWO = """

def not_two(outputs, targets):
    if len(outputs) == 2 and outputs.any():
        raise ValueError("two")
    return outputs[:, 0]
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_code(tmp_path, monkeypatch, METRICS + NOT_TWO)


def result(batches: Sequence[tuple[Tensor, Tensor]], *words: str) -> Evaluation:
    config = compose(["dataset=shapes", "image.eval_size=16", *words]).config
    loader = [(outputs, targets, np.arange(len(targets))) for outputs, targets in batches]
    task = build_task(config)
    task.prepare = lambda batch: batch  # type: ignore[method-assign]
    found = evaluate(nn.Identity(), task, loader, torch.no_grad, CPU)
    assert found is not None
    return found


def samples() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(101, 10, generator=random), torch.randint(10, (101,), generator=random)


def test_metrics_are_those_of_all_samples_over_uneven_batches() -> None:
    outputs, targets = samples()
    parts = [slice(0, 64), slice(64, 96), slice(96, 101)]
    metrics = result([(outputs[part], targets[part]) for part in parts], *WORDS).metrics
    assert list(metrics)[:2] == ["top1", "top5"]
    assert list(metrics)[-2:] == ["f1", "top3"]
    hits = (outputs.topk(3).indices == targets[:, None]).any(1)
    assert metrics["top3"] == hits.double().mean().item()
    expected = multiclass_f1_score(outputs, targets, num_classes=10, average="macro").item()
    assert metrics["f1"] == pytest.approx(expected, rel=1e-6)


def on_rank(rank: int, folder: str, one_rank: dict[str, float]) -> None:
    code.use([f"{folder}/nets.py"])
    outputs, targets = samples()
    parts = [slice(0, 64), slice(64, 96)] if rank == 0 else [slice(96, 101)]
    metrics = result([(outputs[part], targets[part]) for part in parts], *WORDS).metrics
    assert metrics.keys() == one_rank.keys()
    for name, value in metrics.items():
        assert value == pytest.approx(one_rank[name], rel=1e-6)


@pytest.mark.slow
def test_metrics_are_the_same_on_ranks_with_different_numbers_of_batches(tmp_path: Path) -> None:
    on_ranks(2, on_rank, str(tmp_path), result([samples()], *WORDS).metrics)


def test_an_error_in_an_evaluation_makes_the_metric_nan(capsys: pytest.CaptureFixture[str]) -> None:
    outputs, targets = samples()
    metrics = result([(outputs, targets), (outputs[:2], targets[:2])], "metrics.odd._target_=nets.not_two").metrics
    assert math.isnan(metrics["odd"])
    assert metrics["top1"] > 0
    assert "warning: metrics.odd=nets.not_two is NaN, since it fails: ValueError: two" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["metrics.m._target_=nets.mean_of_batch"],
            r"it returns shape \[\], but must return one value a sample, \[2\]",
        ),
        ([*F1, "metrics.f1.num_classes=5"], "fails: "),
        ([*F1[:2], "metrics.f1.average=none", "metrics.f1.num_classes=10"], r"it returns shape \[10\]"),
    ],
)
def test_metrics_are_checked_before_the_start(words: list[str], line: str) -> None:
    task = build_task(compose(["dataset=shapes", *words]).config)
    with pytest.raises(UserError, match=line):
        check_metrics(task, (16, 16), CPU)


def test_a_metric_of_the_task_keeps_its_name() -> None:
    with pytest.raises(
        UserError, match=r"metrics.top1=nets.top2 \(command line\): is a metric of task=classification already"
    ):
        compose(["metrics.top1._target_=nets.top2"])


def test_metrics_are_goals_with_their_direction() -> None:
    task = compose([*WORDS, "metrics.top3.better=lower", "target=top3:0.4"]).config.task
    assert task.goal("top3:0.4").is_reached({"top3": 0.3})
    assert task.goal("f1:0.4").is_reached({"f1": 0.5})
