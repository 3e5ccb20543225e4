import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import resnet18

from launcher.algorithms.selective_backprop import choose_ranks, sample_losses
from launcher.data.batch import Batch
from launcher.losses.bce import bce
from launcher.losses.cross_entropy import cross_entropy
from tests.trainers import SIZE_FOR_BF16, build, steps


def test_a_draw_follows_the_weights_of_the_percentiles() -> None:
    samples, trials = 5, 20000
    draws = np.random.default_rng(0)
    first = [choose_ranks(samples, 1, 0.25, draws)[0] for _ in range(trials)]
    weights = ((np.arange(samples) + 0.5) / samples) ** 3
    expected = weights / weights.sum()
    np.testing.assert_allclose(np.bincount(first, minlength=samples) / trials, expected, atol=4 * 0.5 / trials**0.5)
    assert sorted(choose_ranks(samples, samples, 0.25, draws)) == list(range(samples))


@pytest.mark.parametrize(("loss", "reference"), [(cross_entropy, F.cross_entropy), (bce, None)])
def test_losses_of_samples_are_computed_at_a_smaller_size(loss: Any, reference: Any) -> None:
    model = resnet18(num_classes=10)
    model(torch.randn(4, 3, 32, 32))
    state = copy.deepcopy(model.state_dict())
    images, labels = torch.randn(6, 3, 32, 32), torch.arange(6)
    targets = F.one_hot(labels, 10).float()
    losses = sample_losses(images, targets, model, loss, 0.5)
    assert model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        # note: without antialiasing, as Composer resizes for this pass
        logits = model.eval()(F.interpolate(images, scale_factor=0.5, mode="bilinear"))
    if reference is not None:
        expected = reference(logits, labels, reduction="none")
    else:
        expected = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)


def test_the_pass_that_selects_samples_has_the_precision_of_the_run() -> None:
    words = ["algorithms=[selective_backprop]", "algorithms.selective_backprop.start=0.0", SIZE_FOR_BF16]
    dtypes = {}
    for precision in ("fp32", "bf16"):
        run = build(*words, f"precision={precision}", "algorithms.selective_backprop.scale=1.0")
        run.train_step.model.fc.register_forward_hook(
            lambda layer, inputs, logits, key=precision: dtypes.update({(key, layer.training): logits.dtype})
        )
        steps(run, 2)
    exact, rounded = torch.float32, torch.bfloat16
    assert dtypes == {("fp32", True): exact, ("fp32", False): exact, ("bf16", True): rounded, ("bf16", False): rounded}


class LossByNumber(nn.Module):
    """Returns logits whose loss grows with the value of an image's pixels, its number."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        numbers = images.mean((1, 2, 3))
        return torch.stack([-numbers, *[torch.zeros_like(numbers)] * 9], 1)


def chosen_of(algorithm: Any, loaded: Batch, network: nn.Module, loss: Any) -> Batch:
    algorithm.bind(network, loss)
    transform = algorithm.change_batch(loaded, loaded.inputs.shape[2:])
    chosen: Batch = transform.apply(loaded, *map(torch.from_numpy, transform.arrays))
    return chosen


def test_samples_with_high_losses_stay_with_their_targets_and_indices(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    algorithm = bound("selective_backprop", keep=0.25, interval=1)
    size, counts = 16, np.zeros(16)
    for step in range(50, 90):
        loaded = batch(count=size, size=4, step=step, targets=torch.zeros(size, dtype=torch.int64))
        images = torch.arange(float(size)).view(size, 1, 1, 1).expand(size, 3, 4, 4).contiguous()
        chosen = chosen_of(
            algorithm, replace(loaded, inputs=images, indices=np.arange(size) + 100), LossByNumber(), bce
        )
        numbers = chosen.inputs[:, 0, 0, 0].long().numpy()
        assert len(set(numbers.tolist())) == 4
        assert (chosen.indices[chosen.chosen] == numbers + 100).all()
        assert len(chosen.targets) == 4
        counts[numbers] += 1
    assert counts[8:].sum() > 3 * counts[:8].sum()


def test_it_acts_at_the_steps_of_composers_interval(bound: Callable[..., Any]) -> None:
    for interval in (2, 3):
        algorithm = bound("selective_backprop", interval=interval, start=0.0, end=1.0)
        ours = {step for step in range(12) if algorithm.acts_at(algorithm.context.plan, step)}
        composers = {step for step in range(12) if (step + 1) % interval != 0}
        assert ours == set(range(12)) - composers


def test_it_acts_between_its_start_and_its_end(bound: Callable[..., Any]) -> None:
    algorithm = bound("selective_backprop", interval=1, start=0.25, end=0.65)
    plan = algorithm.context.plan
    assert [step for step in range(plan.total_steps) if algorithm.acts_at(plan, step)] == [*range(25, 65)]


@pytest.mark.parametrize("scale", [0.25, 0.5, 1.0])
def test_the_selecting_pass_sees_images_of_its_scale(
    bound: Callable[..., Any], batch: Callable[..., Any], scale: float
) -> None:
    network, sizes = LossByNumber(), []
    network.register_forward_pre_hook(lambda _, inputs: sizes.append(inputs[0].shape[2:]))
    algorithm = bound("selective_backprop", interval=1, scale=scale)
    chosen_of(algorithm, batch(size=16, step=50), network, cross_entropy)
    assert sizes == [(16 * scale,) * 2]


def test_micro_batches_stay_equal(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    algorithm = bound("selective_backprop", "device_batch_size=3", "batch_size=12", keep=0.6, interval=1)
    chosen = chosen_of(algorithm, batch(count=12, step=45), LossByNumber(), cross_entropy)
    assert len(chosen.inputs) == 4
