from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from launcher.algorithms.label_smoothing import smooth
from tests.transforms import transformed


def test_loss_is_that_of_torchs_own_smoothing(bound: Callable[..., Any], batch: Callable[..., Any]) -> None:
    made = batch()
    changed = transformed(bound("label_smoothing", smoothing=0.13), made)
    logits = torch.randn(8, 10)
    expected = F.cross_entropy(logits, made.targets, label_smoothing=0.13)
    torch.testing.assert_close(F.cross_entropy(logits, changed.targets), expected)
    torch.testing.assert_close(changed.targets[3, 3].item(), 0.87 + 0.013, rtol=0, atol=1e-6)


def test_class_weights_are_smoothed_alike() -> None:
    weights = torch.tensor([[0.25, 0.75, 0.0, 0.0]])
    torch.testing.assert_close(smooth(weights, 0.2, 4), torch.tensor([[0.25, 0.65, 0.05, 0.05]]))
