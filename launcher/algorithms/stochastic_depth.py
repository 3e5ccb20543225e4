"""Stochastic depth (Huang et al. 2016), sample-wise: residual branches are left out at random in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import resnet

from launcher import randomness
from launcher.algorithms.base import Algorithm, Context, Size, Transform
from launcher.config.algorithms import StochasticDepthConfig
from launcher.data.batch import Batch
from launcher.models.build import Surgery
from launcher.models.checkpointing import is_recomputing


def drop_rates(blocks: int, last: float, distribution: str) -> list[float]:
    """Drop rates of `blocks` residual blocks: `l / blocks * last` for l = 1 .. blocks, or `last` for each."""
    return [last * (block / blocks if distribution == "linear" else 1.0) for block in range(1, blocks + 1)]


def last_of_branches(network: nn.Module) -> list[nn.Module]:
    """The last layer of each residual branch, in the order of depth."""
    blocks = [module for module in network.modules() if isinstance(module, resnet.BasicBlock | resnet.Bottleneck)]
    return [block.bn3 if isinstance(block, resnet.Bottleneck) else block.bn2 for block in blocks]


def times_keep_rate(layer: nn.Module, _: Any, branch: Tensor) -> Tensor:
    """A forward hook of the last layer of a residual branch."""
    return branch * layer.get_buffer("keep_rate")


def scale_branches(network: nn.Module, *, drop_rate: float, distribution: str) -> None:
    """Weight each residual branch by its keep rate, as evaluation does where training only drops."""
    layers = last_of_branches(network)
    for layer, rate in zip(layers, drop_rates(len(layers), drop_rate, distribution), strict=True):
        layer.register_buffer("keep_rate", torch.tensor(1 - rate), persistent=False)
        layer.register_forward_hook(times_keep_rate)


class BranchDrop:
    """A forward hook on the last layer of a residual branch, which weights the branch [B, C, H, W] sample by sample.

    `kept` holds 1 or 0 a sample of this process's whole batch; forward passes take their samples from it in turn,
    from the start again after the last, so that accumulated parts and a second pass see each sample's own draw.
    """

    def __init__(self, rate: float, scale_in_training: bool):
        self.keep_rate = 1 - rate
        self.scale_in_training = scale_in_training
        self.kept = torch.ones(0)

    def __call__(self, layer: nn.Module, _: Any, branch: Tensor) -> Tensor:
        if not layer.training:
            return branch if self.scale_in_training else branch * self.keep_rate
        again = is_recomputing()
        kept = self.kept[-len(branch) :] if again else self.kept[: len(branch)]
        if len(branch) < len(self.kept) and not again:
            # note: a roll and not a counter, for each value of which compiled code would be made anew
            self.kept = self.kept.roll(-len(branch))
        if self.scale_in_training:
            kept = kept / self.keep_rate
        return branch * kept.to(branch.dtype).view(-1, 1, 1, 1)


class StochasticDepth(Algorithm[StochasticDepthConfig]):
    """Draws for every (epoch, sample, block) whether the block's branch is kept."""

    needs = "residual block of torchvision's; those of timm's models are dropped by model.drop_path_rate=0.1"
    surgery = Surgery(scale_branches, parts=(drop_rates, last_of_branches, times_keep_rate))

    def __init__(self, values: StochasticDepthConfig, context: Context):
        super().__init__(values, context)
        self._drops: list[BranchDrop] = []
        self._kept: dict[torch.Size, Tensor] = {}

    def change_model(self, model: nn.Module) -> None:
        layers = last_of_branches(model)
        rates = drop_rates(len(layers), self.values.drop_rate, self.values.distribution)
        self._drops = [BranchDrop(rate, self.values.keep_scaling == "training") for rate in rates]
        for layer, drop in zip(layers, self._drops, strict=True):
            layer.register_forward_hook(drop)

    def surgery_values(self) -> dict[str, Any] | None:
        if self.values.keep_scaling == "training":
            return None
        return {"drop_rate": self.values.drop_rate, "distribution": self.values.distribution}

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        moment = batch.moment
        draws = randomness.uniforms(moment.seed, "stochastic_depth", moment.epoch, batch.indices, len(self._drops))
        keep_rates = [drop.keep_rate for drop in self._drops]
        return Transform([(draws < keep_rates).T.astype("float32")], self._set, sets_model=True)

    def _set(self, batch: Batch, kept: Tensor) -> Batch:
        if batch.chosen is not None:
            kept = kept[:, batch.chosen]
        # note: in the same memory at every step, as a captured one needs
        kept = self._kept.setdefault(kept.shape, torch.empty_like(kept)).copy_(kept)
        for drop, row in zip(self._drops, kept, strict=True):
            drop.kept = row
        return batch
