from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from launcher.algorithms.base import Context
from launcher.algorithms.engine import build
from launcher.algorithms.mixup import mix_images, mix_targets
from tests.transforms import transformed


def test_images_and_targets_are_blended_alike() -> None:
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


def test_published_form_leaves_the_second_half_unsmoothed() -> None:
    labels, order = torch.tensor([0, 1, 2, 1]), torch.tensor([2, 0, 3, 1])
    hot = torch.eye(3)[labels]
    smoothed = hot * 0.9 + 0.1 / 3
    both, first = (mix_targets(smoothed, order, torch.tensor(0.25), 3, form) for form in ("both", "first"))
    torch.testing.assert_close(both, 0.75 * smoothed + 0.25 * smoothed[order])
    torch.testing.assert_close(first, 0.75 * smoothed + 0.25 * hot[order])


def weight_of(changed: Any, original: Tensor) -> float:
    """The weight that turned one-hot targets into the mixed ones."""
    return float(1 - (changed.targets * F.one_hot(original, 10)).sum(1).min())


def test_weights_are_the_smaller_half_of_a_beta(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    algorithm = bound("mixup", alpha=0.4)
    made = batch(size=8, side=2, targets=torch.arange(8))
    weights = [
        weight_of(transformed(algorithm, replace(made, moment=batch(step=step).moment)), made.targets)
        for step in range(600)
    ]
    # gamma variates give a Beta without its own generator
    a, b = np.random.default_rng(0).gamma(0.4, size=(2, 200_000))
    reference = np.sort(np.minimum(a, b) / (a + b))
    distance = np.abs(np.searchsorted(reference, np.sort(weights)) / len(reference) - np.arange(600) / 600).max()
    assert 0 <= min(weights) <= max(weights) <= 0.5
    assert distance < 1.95 / 600**0.5  # Kolmogorov-Smirnov, at one in a thousand


def test_draws_depend_on_seed_step_and_rank_only(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    algorithm = bound("mixup", alpha=1.0)
    made = batch()

    def mixed(**moment: int) -> Tensor:
        changed = transformed(algorithm, replace(made, moment=batch(**moment).moment))
        assert changed.images.is_contiguous(memory_format=torch.channels_last)
        return changed.images

    reference = mixed(step=3)
    assert torch.equal(mixed(step=3), reference)
    assert not torch.equal(mixed(step=4), reference)
    assert not torch.equal(mixed(step=3, rank=1), reference)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.5, 0.5), (0.3, 0.2)])
def test_mixup_and_cutmix_share_the_batches(
    context: Callable[..., Context], batch: Callable[..., Any], mixup: float, cutmix: float
) -> None:
    made = context(
        "algorithms=[mixup,cutmix]",
        "algorithms.mixup.alpha=1.0",
        f"algorithms.mixup.probability={mixup}",
        f"algorithms.cutmix.probability={cutmix}",
    )
    both = build(made)
    loaded, counts = batch(side=4), {"mixup": 0, "cutmix": 0}
    for step in range(1000):
        at = replace(loaded, moment=batch(size=1, side=1, step=step).moment)
        acted = [name for name in both if transformed(both[name], at) is not at]
        assert len(acted) <= 1
        for name in acted:
            counts[name] += 1
    assert counts["mixup"] == pytest.approx(1000 * mixup, abs=65)
    assert counts["cutmix"] == pytest.approx(1000 * cutmix, abs=65)
