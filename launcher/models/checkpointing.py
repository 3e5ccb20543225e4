"""Activation checkpointing (Chen et al. 2016): blocks save only their input and are recomputed in the backward pass.

The recomputation uses the same random numbers and does not update batch norm's statistics, so losses, gradients and
weights are unchanged.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from launcher.errors import Problem, UserError
from launcher.later import nn, torch

if TYPE_CHECKING:
    from torch import Tensor


def is_recomputing() -> bool:
    """Return whether a forward pass is a recomputation within a backward pass; False in compiled code."""
    # note: as torch.utils.checkpoint detects it
    return not torch.compiler.is_compiling() and bool(torch._C._current_graph_task_id() != -1)


def checkpoint_activations(network: nn.Module) -> None:
    """Enable checkpointing in a network of residual or transformer blocks, or in timm's, in place.

    Raises UserError if the network does not support it.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck

    from launcher.models import causal_transformer, residual_unet, vision_transformer

    own = (vision_transformer.Block, causal_transformer.CausalBlock, residual_unet.TwoConvolutions)
    kinds = (BasicBlock, Bottleneck, *own)
    blocks: list[Any] = [module for module in network.modules() if isinstance(module, kinds)]
    for block in blocks:
        # note: changing the class keeps weights, names and hooks as they are
        block.__class__ = _checkpointed(block.__class__)
    if not blocks:
        _enable_in_timm(network)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            module.register_forward_pre_hook(_protect_statistics)
            # note: a recomputation may stop inside the layer
            module.register_forward_hook(_restore_statistics, always_call=True)


def _enable_in_timm(network: nn.Module) -> None:
    enable: Any = getattr(network, "set_grad_checkpointing", None)
    try:
        if enable is not None:
            enable(enable=True)
            return
    except AssertionError:
        pass
    message = f"timm's {type(network).__name__} does not support activation checkpointing; set model.checkpointing=off"
    raise UserError(Problem(message, "model.checkpointing", "on"))


@cache
def _checkpointed(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of a block that is recomputed in the backward pass."""

    def forward(self: Any, *inputs: Tensor | None) -> Any:
        if not self.training:
            return kind.forward(self, *inputs)
        return torch.utils.checkpoint.checkpoint(kind.forward, self, *inputs, use_reentrant=False)

    return type(f"Checkpointed{kind.__name__}", (kind,), {"forward": forward})


def _protect_statistics(layer: nn.Module, _: Any) -> None:
    """Let a recomputation update copies of the statistics."""
    if is_recomputing():
        layer.__dict__["saved_buffers"] = dict(layer._buffers)
        layer._buffers.update({name: one.clone() for name, one in layer._buffers.items() if one is not None})


def _restore_statistics(layer: nn.Module, *_: Any) -> None:
    layer._buffers.update(layer.__dict__.pop("saved_buffers", {}))
