"""The calibration error, compared with torchmetrics and formulas written out here."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from launcher.tasks.calibration import calibration_error, equal_mass


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
