"""Label smoothing, MixUp and CutMix, which change targets."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torchvision.transforms import v2

from launcher.algorithms.base import Context
from launcher.algorithms.cutmix import box
from launcher.algorithms.cutout import erase
from launcher.algorithms.engine import build
from launcher.algorithms.label_smoothing import smooth
from launcher.algorithms.mixup import mix_images, mix_targets
from tests.transforms import transformed


def test_label_smoothing_gives_the_loss_of_torchs_own(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    loaded = batch()
    changed = transformed(bound("label_smoothing", smoothing=0.13), loaded)
    logits = torch.randn(8, 10)
    expected = F.cross_entropy(logits, loaded.targets, label_smoothing=0.13)
    torch.testing.assert_close(F.cross_entropy(logits, changed.targets), expected)
    torch.testing.assert_close(changed.targets[3, 3].item(), 0.87 + 0.013, rtol=0, atol=1e-6)


def test_class_weights_are_smoothed_like_class_indices() -> None:
    weights = torch.tensor([[0.25, 0.75, 0.0, 0.0]])
    torch.testing.assert_close(smooth(weights, 0.2, 4), torch.tensor([[0.25, 0.65, 0.05, 0.05]]))


def test_mixup_blends_images_and_targets_by_the_same_weight() -> None:
    images, order = torch.randn(4, 3, 5, 5), torch.tensor([2, 0, 3, 1])
    labels = torch.tensor([0, 1, 2, 1])
    mixed, targets = (
        mix_images(images, order, torch.tensor(0.3)),
        mix_targets(labels, order, torch.tensor(0.3), 3, "both"),
    )
    for i, j in enumerate(order.tolist()):
        torch.testing.assert_close(mixed[i], 0.7 * images[i] + 0.3 * images[j])
        expected = torch.zeros(3)
        expected[labels[i]] += 0.7
        expected[labels[j]] += 0.3
        torch.testing.assert_close(targets[i], expected)


def weight_of(changed: Any, original: Tensor) -> float:
    """Return the weight of the mixture that turned one-hot targets into the changed ones."""
    return float(1 - (changed.targets * F.one_hot(original, 10)).sum(1).min())


def test_weights_of_mixup_are_the_smaller_of_z_and_1_minus_z(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    algorithm = bound("mixup", alpha=0.4)
    loaded = batch(count=8, size=2, targets=torch.arange(8))
    weights = [
        weight_of(transformed(algorithm, replace(loaded, moment=batch(step=step).moment)), loaded.targets)
        for step in range(600)
    ]
    # gamma variates give a Beta distribution without its own generator
    a, b = np.random.default_rng(0).gamma(0.4, size=(2, 200_000))
    reference = np.sort(np.minimum(a, b) / (a + b))
    distance = np.abs(np.searchsorted(reference, np.sort(weights)) / len(reference) - np.arange(600) / 600).max()
    assert 0 <= min(weights) <= max(weights) <= 0.5
    assert distance < 1.95 / 600**0.5  # Kolmogorov-Smirnov, at one in a thousand


def test_areas_of_cutmix_are_those_of_boxes_drawn_by_its_alpha(
    bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    algorithm, size, count = bound("cutmix", alpha=0.4), 20, 1500
    loaded = batch(count=8, size=size, targets=torch.arange(8))
    weights = [
        weight_of(transformed(algorithm, replace(loaded, moment=batch(step=step).moment)), loaded.targets)
        for step in range(count)
    ]
    random = np.random.default_rng(0)
    a, b = random.gamma(0.4, size=(2, 100_000))
    half, (row, column) = (np.sqrt(a / (a + b)) * size / 2).astype(int), random.integers(size, size=(2, 100_000))
    height, width = (np.minimum(size, at + half) - np.maximum(0, at - half) for at in (row, column))
    areas = height * width / size**2
    # note: weights are float32, and some areas frequent
    assert stats.ks_2samp(np.round(weights, 4), np.round(areas, 4)).pvalue > 1e-3


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_smoothed_targets_are_mixed_as_configured(
    name: str, bound: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    """With `first`, as published, the weights of the other class come from its label alone."""
    hot = torch.eye(10)[torch.arange(8)]
    loaded = replace(batch(step=3), targets=hot * 0.9 + 0.01)
    first, both = (transformed(bound(name, alpha=1.0, smoothed=form), loaded).targets for form in ("first", "both"))
    mixed = transformed(bound(name, alpha=1.0), replace(loaded, targets=hot))
    own = (1 - weight_of(mixed, torch.arange(8))) * hot
    torch.testing.assert_close(both, mixed.targets * 0.9 + 0.01)
    torch.testing.assert_close(first, own * 0.9 + own.sum(1, keepdim=True) * 0.01 + mixed.targets - own)


def test_draws_of_mixup_only_depend_on_seed_step_and_rank(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    algorithm = bound("mixup", alpha=1.0)
    loaded = batch()

    def mixed(**moment: int) -> Tensor:
        changed = transformed(algorithm, replace(loaded, moment=batch(**moment).moment))
        assert changed.inputs.is_contiguous(memory_format=torch.channels_last)
        return changed.inputs

    reference = mixed(step=3)
    assert torch.equal(mixed(step=3), reference)
    assert not torch.equal(mixed(step=4), reference)
    assert not torch.equal(mixed(step=3, rank=1), reference)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.5, 0.5), (0.3, 0.2)])
def test_each_batch_gets_mixup_or_cutmix_or_none(
    context: Callable[..., Context], batch: Callable[..., Any], mixup: float, cutmix: float
) -> None:
    chances = [f"algorithms.mixup.probability={mixup}", f"algorithms.cutmix.probability={cutmix}"]
    run = context("algorithms=[mixup,cutmix]", "algorithms.mixup.alpha=1.0", *chances)
    both = build(run)
    loaded, counts = batch(size=4), {"mixup": 0, "cutmix": 0}
    for step in range(1000):
        at = replace(loaded, moment=batch(count=1, size=1, step=step).moment)
        acted = [name for name in both if transformed(both[name], at) is not at]
        assert len(acted) <= 1
        for name in acted:
            counts[name] += 1
    assert counts["mixup"] == pytest.approx(1000 * mixup, abs=65)
    assert counts["cutmix"] == pytest.approx(1000 * cutmix, abs=65)


@given(st.integers(8, 40), st.integers(8, 40), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_cutmix_is_that_of_torchvision_for_the_same_draws(height: int, width: int, area: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    row, column = int(random.integers(height)), int(random.integers(width))
    images = torch.from_numpy(random.random((6, 3, height, width), dtype=np.float32))
    labels = torch.arange(6)
    transform = v2.CutMix(num_classes=6)
    draws = [torch.tensor([column]), torch.tensor([row])]
    with (
        mock.patch.object(transform._dist, "sample", return_value=torch.tensor([1 - area])),
        mock.patch("torch.randint", side_effect=draws),
    ):
        expected_images, expected_targets = transform(images, labels)
    rolled = torch.arange(6).roll(1)
    # note: torchvision rounds 1 - area to float32
    top, bottom, left, right = box(height, width, 1 - float(torch.tensor(1 - area)), row, column)
    weight = torch.tensor((bottom - top) * (right - left) / (height * width))
    assert torch.equal(erase(images, torch.tensor([[top, left, bottom, right]]), images[rolled]), expected_images)
    torch.testing.assert_close(mix_targets(labels, rolled, weight, 6, "both"), expected_targets)


@pytest.mark.parametrize("step", range(5))
def test_cutmix_mixes_targets_by_the_pixels_of_each_image(
    bound: Callable[..., Any], batch: Callable[..., Any], step: int
) -> None:
    """For images of a single value the fraction of another's pixels is the weight of its class."""
    loaded = batch(size=16, step=step)
    loaded = replace(loaded, inputs=torch.arange(8.0).view(8, 1, 1, 1).expand(8, 3, 16, 16).contiguous())
    changed = transformed(bound("cutmix"), loaded)
    for image, target in zip(changed.inputs[:, 0], changed.targets, strict=True):
        pixels = F.one_hot(image.long(), 10).float().mean((0, 1))
        torch.testing.assert_close(target, pixels)
    assert loaded.inputs[0].eq(0).all()
