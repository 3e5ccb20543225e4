from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from launcher.algorithms.base import Context
from launcher.algorithms.engine import build
from launcher.config.compose import compose
from launcher.data.batch import Batch, Moment
from launcher.plan.plan import Plan
from tests.two_ranks import on_two_ranks

LAST = 9  # the step that SAM changes, with an interval of 10


def quadratic(model: nn.Linear, calls: list[dict[str, Any]], scale: float = 1.0) -> Callable[..., Tensor]:
    """Return a function that computes gradients of 0.5 w A w and records its calls."""
    matrix = torch.diag(torch.tensor([1.0, 10.0, 100.0]))

    def gradients(batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        weight = model.weight.detach().clone()
        calls.append({"at": weight, "synchronize": synchronize, "update_statistics": update_statistics})
        model.zero_grad(set_to_none=True)
        loss = 0.5 * (model.weight @ matrix @ model.weight.T).sum()
        (loss * scale).backward()
        return loss.detach()

    return gradients


@pytest.mark.parametrize(("scale", "epsilon"), [(1.0, 1e-12), (65536.0, 1e-12), (1.0, 1.5)])
def test_the_gradient_is_that_at_the_point_uphill(
    bound: Callable[..., Any], batch: Callable[..., Any], scale: float, epsilon: float
) -> None:
    model, calls = nn.Linear(3, 1, bias=False), []
    before = model.weight.detach().clone()
    loss = bound("sam", rho=0.3, epsilon=epsilon).compute_gradients(
        batch(step=LAST), model, quadratic(model, calls, scale)
    )
    curvature = torch.tensor([1.0, 10.0, 100.0])
    gradient = curvature * before
    uphill = before + 0.3 * gradient / (gradient.norm() + epsilon)
    torch.testing.assert_close(calls[1]["at"], uphill)
    torch.testing.assert_close(model.weight.grad, curvature * uphill * scale)
    assert torch.equal(model.weight, before)
    torch.testing.assert_close(loss, 0.5 * (curvature * before**2).sum())
    assert [(s["synchronize"], s["update_statistics"]) for s in calls] == [(False, True), (True, False)]


def test_as_published_both_passes_update_the_statistics(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    model, calls = nn.Linear(3, 1, bias=False), []
    bound("sam", batchnorm="both_passes").compute_gradients(batch(step=LAST), model, quadratic(model, calls))
    assert [s["update_statistics"] for s in calls] == [True, True]


@pytest.mark.parametrize("bad_pass", [0, 1])
def test_a_pass_with_a_non_finite_loss_makes_the_loss_non_finite(
    bound: Callable[..., Any], batch: Callable[..., Any], bad_pass: int
) -> None:
    model, losses = nn.Linear(3, 1, bias=False), iter([torch.nan, 1.0] if bad_pass == 0 else [1.0, torch.nan])

    def gradients(batch: Batch, **_: bool) -> Tensor:
        model.weight.grad = torch.ones_like(model.weight)
        return torch.tensor(next(losses))

    assert bound("sam").compute_gradients(batch(step=LAST), model, gradients).isnan()


def _climb(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = compose(["epochs=10", "batch_size=8", "algorithms=[sam]", "algorithms.sam.interval=1"]).config
    context = Context(Plan(config, 2, 80), 10)
    sam = build(context)["sam"]
    model = nn.Linear(3, 1, bias=False)
    network = DistributedDataParallel(model)
    visited, results = [], {}

    def gradients(batch: Batch, *, synchronize: bool = True, update_statistics: bool = True) -> Tensor:
        network.require_backward_grad_sync = synchronize
        visited.append(model.weight.detach().clone())
        model.zero_grad(set_to_none=True)
        loss = network(batch.inputs).square().mean()
        loss.backward()
        return loss.detach()

    for step, poisoned in enumerate((False, True)):
        images = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))
        if poisoned and rank == 1:
            images[0, 0] = torch.nan
        batch = Batch(images, torch.zeros(4), images[:, 0].numpy(), Moment(0, 0, step, 100, rank))
        sam.compute_gradients(batch, model, gradients)
        results[f"grad{step}"] = model.weight.grad.clone()
        results[f"weight{step}"] = model.weight.detach().clone()
    results["visited"] = visited
    torch.save(results, folder / f"{rank}.pt")


def test_ranks_climb_alone_and_average_the_second_gradient(tmp_path: Path) -> None:
    on_two_ranks(_climb, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    start, expected = first["visited"][0], torch.zeros(1, 3)
    for rank, result in enumerate((first, second)):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(rank))
        local = 2 * (x @ start.T).T @ x / 4
        uphill = start + 0.5 * local / local.norm()
        torch.testing.assert_close(result["visited"][1], uphill)
        expected += 2 * (x @ uphill.T).T @ x / 4 / 2
        assert torch.equal(result["weight0"], start)
        assert torch.equal(result["weight1"], start)
        assert result["grad1"].isnan().all()
    torch.testing.assert_close(first["grad0"], expected)
    assert torch.equal(first["grad0"], second["grad0"])
