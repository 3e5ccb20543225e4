"""Calibration error and temperature, compared with torchmetrics, scipy and formulas written out here."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot
from torchmetrics.functional.classification import binary_calibration_error

from launcher.tasks.calibration import calibration_error, equal_mass, fit_temperature


def test_the_calibration_error_is_that_of_torchmetrics_where_equal_mass_is_equal_width() -> None:
    confidences = (torch.arange(150, dtype=torch.float64) + 0.5) / 150
    hits = torch.rand(150, generator=torch.Generator().manual_seed(0)) < confidences**2
    order = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    theirs = binary_calibration_error(confidences, hits.long(), n_bins=15, norm="l1").item()
    ours = calibration_error(equal_mass(confidences[order].numpy(), hits[order].double().numpy()))
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize("count", [1, 7, 15, 100, 1003])
def test_bins_have_equal_mass(count: int) -> None:
    random = np.random.default_rng(count)
    confidences, hits = random.beta(5, 1, count), random.integers(0, 2, count).astype(float)
    pairs, total, first = sorted(zip(confidences, hits, strict=True)), 0.0, 0
    for number in range(min(15, count)):
        size = count // min(15, count) + (number < count % min(15, count))
        part = pairs[first : first + size]
        total += abs(sum(c for c, _ in part) - sum(h for _, h in part)) / count
        first += size
    bins = equal_mass(confidences, hits)
    assert (sum(one.images for one in bins), len(bins)) == (count, min(15, count))
    assert calibration_error(bins) == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("scale", [0.2, 1.0, 8.0])
def test_the_temperature_minimizes_the_loss_as_scipy_does(scale: float, *, sigmoid: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(400, 6, generator=generator, dtype=torch.float64)
    targets = (logits + 1.5 * torch.randn(400, 6, generator=generator)).argmax(1)
    logits = (logits * scale).float()

    def loss(temperature: float) -> float:
        scaled = logits.double() / temperature
        if sigmoid:
            return binary_cross_entropy_with_logits(scaled, one_hot(targets, 6).double()).item()
        return cross_entropy(scaled, targets).item()

    best = minimize_scalar(loss, bounds=(0.05, 80), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits, targets, sigmoid=sigmoid) == pytest.approx(best.x, rel=1e-4)


def test_predictions_that_are_all_right_or_no_better_than_chance_have_no_temperature() -> None:
    logits = torch.eye(4)
    assert fit_temperature(logits, torch.arange(4)) is None
    assert fit_temperature(-logits, torch.arange(4)) is None
