"""Ordinal regression: the network gives the probabilities of amounts, whose mean is the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.later import torch
from launcher.tasks import Details
from launcher.tasks.images import ImageTask

if TYPE_CHECKING:
    from torch import Tensor


def mean(weights: Tensor) -> Tensor:
    """The mean amount [B] of class weights [B, classes], in float32."""
    return weights.float() @ torch.arange(weights.shape[1], device=weights.device, dtype=torch.float32)


@dataclass(config=STRICT)
class Ordinal(ImageTask):
    """Targets are amounts, int64 [B], or class weights, floating-point [B, classes].

    Classes are amounts: 0, 1, 2 ...
    """

    metrics = (Metric("mae", "error", better="lower", is_share=False), Metric("within1", "within 1"))

    name: Literal["ordinal"]

    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor, **of_classes: Tensor) -> Tensor:
        return self.errors(outputs, targets).square().mean()

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        errors = self.errors(outputs, targets).abs()
        return {"mae": errors.sum(), "within1": (errors <= 1).sum()}

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mean(outputs.float().softmax(1)) - (mean(targets) if targets.is_floating_point() else targets)

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        from launcher.tasks.confusion import Confusion  # note: torch

        return Confusion(self, names, with_images=with_images)

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        likeliest = outputs.softmax(1).topk(min(top, outputs.shape[1]))
        rows = zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        return [[(names[number], score) for number, score in zip(*row, strict=True)] for row in rows]
