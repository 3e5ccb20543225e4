"""Whitening of the first convolution (Page 2019; Jordan 2024, arXiv:2404.00498): filters from training images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm
from launcher.compute.accelerator import widest
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, Duration, NotNegative, Within
from launcher.data.batch import Moment, normalize
from launcher.later import nn, no_grad, torch

if TYPE_CHECKING:
    from torch import Tensor

_FROZEN = "whitening keeps the first convolution; freeze without it"


def whitening_filters(covariance: Tensor, drawn: Tensor, eps: float) -> Tensor:
    """Return filters [K, N] that whiten patches of N values: the largest variances first, then the negatives of these.

    covariance: of the patches, [N, N]. A filter is an eigenvector divided by sqrt(eigenvalue + eps); its largest value
    is positive. drawn: [K, N]; outputs beyond twice N are the directions of the whitened values in their rows.
    """
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    filters = (vectors * largest.sign() / (eigenvalues + eps).sqrt()).T.flip(0)[: len(drawn) // 2]
    others = nn.functional.normalize(drawn[2 * len(filters) :, : len(filters)].to(filters)) @ filters
    return torch.cat([filters, -filters, others])


@dataclass(config=STRICT)
class Whitening(
    Algorithm,
    change_model=55,
    before_step=30,
    excludes={"layer_freezing": _FROZEN, "backbone_freezing": _FROZEN},
    acts_on=("image", "label", "mask"),
):
    """Fills the first convolution, whose weight does not learn; its bias does until `bias_until`."""

    needs = "first convolution that reads all channels"

    images: Count
    eps: NotNegative
    bias_until: Annotated[Duration, Within(0.3)]

    def acts_at(self, plan: RunPlan, step: int) -> int:
        """Return whether the bias learns."""
        return step < plan.steps(self.bias_until)

    def set_up(self) -> None:
        self._bias: Tensor | None = None

    @no_grad
    def change_model(self, model: nn.Module) -> None:
        first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
        if first is None or first.groups > 1 or first.out_channels < 2:
            return
        first.weight.requires_grad_(False)
        self._bias = first.bias
        plan = self.context.plan
        self.changes_learning_parameters = first.bias is not None and not self.acts_at(plan, plan.total_steps - 1)
        # note: exports and teachers have no images, but trained weights
        if self.context.images is not None:
            covariance = self._covariance(first)
            filters = whitening_filters(covariance, first.weight.flatten(1).cpu(), self.eps)
            first.weight.copy_(filters.view_as(first.weight))

    def before_step(self, model: nn.Module, moment: Moment) -> None:
        if self._bias is not None:
            self._bias.requires_grad_(bool(self.acts_at(self.context.plan, moment.step)))

    def _covariance(self, layer: nn.Conv2d) -> Tensor:
        """Return the mean product of the values of a patch, about zero, float64 [N, N] on the CPU."""
        assert self.context.images is not None
        dataset, device = self.context.plan.config.dataset, layer.weight.device
        total, count = torch.zeros((), dtype=widest(device), device=device), 0
        for images in self.context.images(self.images):
            # note: the patches of all images at once would fill the memory
            for image in normalize(images, *dataset.normalization, torch.float32, dataset.largest):
                # note: an image smaller than the filters has no patch without the layer's zeros around it
                is_small = min(image.shape[1:]) < max(layer.kernel_size)
                padding = layer.padding if is_small and isinstance(layer.padding, tuple) else 0
                unfolded = nn.functional.unfold(image[None], layer.kernel_size, 1, padding, layer.stride)
                patches = unfolded[0].to(total.dtype)
                total, count = total + patches @ patches.T, count + patches.shape[1]
        return (total / count).cpu().double()
