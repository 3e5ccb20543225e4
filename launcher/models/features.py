"""The features of a network: the input of its last layer, on which a linear probe learns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.errors import Problem, UserError
from launcher.later import nn
from launcher.models.parameters import classifiers

if TYPE_CHECKING:
    from torch import Tensor


def features(network: nn.Module, images: Tensor) -> Tensor:
    """Return the features [B, D] of prepared images [B, C, H, W]; the network is in evaluation mode.

    Raises UserError if its outputs are not those of one linear layer of one vector an image.
    """
    passes: list[tuple[Tensor, Tensor]] = []
    heads = classifiers(network)
    hooks = [head.register_forward_hook(lambda _, inputs, output: passes.append((inputs[0], output))) for head in heads]
    try:
        outputs = network(images)
    finally:
        for hook in hooks:
            hook.remove()
    if len(passes) == len(heads) == 1 and isinstance(heads[0], nn.Linear):
        ((inputs, last),) = passes
        if last is outputs and inputs.ndim == 2:
            return inputs
    message = f"{type(network).__name__} does not end in one linear layer of one vector an image; set dataloader="
    raise UserError(
        Problem(f"{message}torchvision, which trains its last layer on the images", "dataloader", "features")
    )


def accept_features(network: nn.Module) -> None:
    """Let a network also accept features [B, D], of which only its last layer computes outputs, in place."""
    (head,) = classifiers(network)
    last = next(name for name, module in network.named_modules() if module is head)
    kind = type(network)

    def forward(self: Any, inputs: Tensor) -> Any:
        return self.get_submodule(last)(inputs) if inputs.ndim == 2 else kind.forward(self, inputs)

    # note: changing the class keeps weights, names and hooks as they are
    network.__class__ = type(kind.__name__, (kind,), {"forward": forward})
