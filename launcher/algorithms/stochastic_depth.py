"""Stochastic depth (Huang et al. 2016) per sample: drop residual branches at random in training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.compute import randomness
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.later import nn, torch
from launcher.models.checkpointing import is_recomputing

if TYPE_CHECKING:
    from torch import Tensor


def drop_rates(blocks: int, last: float, distribution: str) -> list[float]:
    """Return the drop rate of each residual block: a line to `last`, from `last / blocks` or from 0, or `last`."""
    if distribution == "linear_from_zero":
        return [last * block / max(1, blocks - 1) for block in range(blocks)]
    return [last * (block / blocks if distribution == "linear" else 1.0) for block in range(1, blocks + 1)]


def last_layers(network: nn.Module) -> list[list[nn.Module]]:
    """Return the last layers of the residual branches of each block, in the order of depth."""
    if (branches := getattr(network, "residual_branches", None)) is not None:
        return list(branches())
    from torchvision.models import resnet

    blocks = [module for module in network.modules() if isinstance(module, resnet.BasicBlock | resnet.Bottleneck)]
    return [[block.bn3 if isinstance(block, resnet.Bottleneck) else block.bn2] for block in blocks]


def layers_with_rates(network: nn.Module, last: float, distribution: str) -> list[tuple[nn.Module, float]]:
    """Return the last layer of each residual branch with the drop rate of its block."""
    blocks = last_layers(network)
    rates = drop_rates(len(blocks), last, distribution)
    return [(layer, rate) for layers, rate in zip(blocks, rates, strict=True) for layer in layers]


class BranchDrop:
    """Drops a residual branch [B, ...] for some samples, as the forward hook of its last layer.

    `mask` has 1 or 0 for each sample of the rank's batch. Forward passes consume it in order and then start again, so
    that micro-batches and a second pass use each sample's own draw.
    """

    def __init__(self, rate: float, scale_in_training: bool):
        self.keep_rate = 1 - rate
        self.scale_in_training = scale_in_training
        self.mask = torch.ones(1)  # note: until the first batch, for any number of samples

    def __call__(self, layer: nn.Module, _: Any, branch: Tensor) -> Tensor:
        if not layer.training:
            return branch if self.scale_in_training else branch * self.keep_rate
        recomputing = is_recomputing()
        mask = self.mask[-len(branch) :] if recomputing else self.mask[: len(branch)]
        if len(branch) < len(self.mask) and not recomputing:
            # note: each value of a counter would be compiled separately
            self.mask = self.mask.roll(-len(branch))
        if self.scale_in_training:
            mask = mask / self.keep_rate
        return branch * mask.to(branch.dtype).view(-1, *[1] * (branch.ndim - 1))


@dataclass(config=STRICT)
class StochasticDepth(Algorithm, change_model=30, change_batch=90):
    """Draws for every epoch, sample and branch whether to keep it; attention and MLP of a block are two branches."""

    # note: a graph would not set the masks of the steps that run without one
    repeats_changes = False
    needs = "residual block of torchvision, gpt or vit; timm's models have model.drop_path_rate=0.1 instead"

    drop_rate: Annotated[float, Field(ge=0, lt=1)]
    distribution: Literal["linear", "linear_from_zero", "uniform"]
    keep_scaling: Literal["evaluation", "training"]

    def network_values(self) -> dict[str, Any] | None:
        values = {"drop_rate": self.drop_rate, "distribution": self.distribution}
        return None if self.keep_scaling == "training" else values

    def set_up(self) -> None:
        self._drops: list[BranchDrop] = []
        self._masks: dict[torch.Size, Tensor] = {}

    def change_model(self, model: nn.Module) -> None:
        rated = layers_with_rates(model, self.drop_rate, self.distribution)
        self._drops = [BranchDrop(rate, self.keep_scaling == "training") for _, rate in rated]
        for (layer, _), drop in zip(rated, self._drops, strict=True):
            layer.register_forward_hook(drop)

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        if not self._drops:  # note: without a network, in the look at training images
            return None
        moment = batch.moment
        draws = randomness.uniforms(moment.seed, "stochastic_depth", moment.epoch, batch.indices, len(self._drops))
        keep_rates = [drop.keep_rate for drop in self._drops]
        return Transform([(draws < keep_rates).T.astype("float32")], self._set)

    def _set(self, batch: Batch, masks: Tensor) -> Batch:
        if batch.chosen is not None:
            masks = masks[:, batch.chosen]
        if (parts := len(batch.inputs) // masks.shape[1]) > 1:
            # note: ALiBi cuts a sequence into parts, which share its draw
            masks = masks.repeat_interleave(parts, 1)
        # note: at the same address in every step, as captured steps need
        masks = self._masks.setdefault(masks.shape, torch.empty_like(masks)).copy_(masks)
        for drop, mask in zip(self._drops, masks, strict=True):
            drop.mask = mask
        return batch
