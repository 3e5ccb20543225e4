"""Activation checkpointing (Chen et al. 2016): blocks keep their input and are computed again in the backward pass.

The second computation sees the same random numbers and leaves the statistics of batch norm alone, so that losses,
gradients and weights stay as they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models.resnet import BasicBlock, Bottleneck

from launcher.errors import Problem, UserError
from launcher.models.vision_transformer import Block


def is_recomputing() -> bool:
    """Whether a forward pass is one inside a backward pass, as checkpointing asks for; compiled code has none."""
    # note: how torch.utils.checkpoint knows it itself
    return not torch.compiler.is_compiling() and bool(torch._C._current_graph_task_id() != -1)


def checkpoint_activations(network: nn.Module) -> None:
    """Let a network of residual or transformer blocks, or of timm's, keep less for the backward pass, in place.

    Raises:
        UserError: it has no way to.
    """
    kinds = (BasicBlock, Bottleneck, Block)
    blocks: list[Any] = [module for module in network.modules() if isinstance(module, kinds)]
    for block in blocks:
        # note: changing the class keeps weights, names and hooks as they are
        block.__class__ = _checkpointed(block.__class__)
    if not blocks:
        _ask_timm(network)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.register_forward_pre_hook(_leave_statistics)
            # note: a recomputation may be cut off inside the layer
            module.register_forward_hook(_take_statistics, always_call=True)


def _ask_timm(network: nn.Module) -> None:
    ask: Any = getattr(network, "set_grad_checkpointing", None)
    try:
        if ask is not None:
            ask(enable=True)
            return
    except AssertionError:
        pass
    message = f"timm's {type(network).__name__} has no activation checkpointing; leave it off"
    raise UserError(Problem(message, "model.checkpointing", "on"))


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """A block that is computed again in the backward pass."""

    def forward(self: Any, images: Tensor) -> Any:
        if not self.training:
            return kind.forward(self, images)
        return checkpoint(kind.forward, self, images, use_reentrant=False)

    return type(f"Checkpointed{kind.__name__}", (kind,), {"forward": forward})


def _leave_statistics(layer: nn.Module, _: Any) -> None:
    """Let a recomputation move copies."""
    if is_recomputing():
        layer.__dict__["kept_buffers"] = dict(layer._buffers)
        layer._buffers.update({name: one.clone() for name, one in layer._buffers.items() if one is not None})


def _take_statistics(layer: nn.Module, *_: Any) -> None:
    layer._buffers.update(layer.__dict__.pop("kept_buffers", {}))
