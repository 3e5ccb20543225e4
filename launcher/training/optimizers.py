"""Optimizers, built from the config: SGD with decoupled decay, SGD, AdamW, LAMB."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from launcher.config import schema

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def build_optimizer(config: schema.Optimizer, model: nn.Module, lr: float) -> Optimizer:
    """The optimizer that the config names, over all parameters of the model; `lr` is the schedule's peak."""
    groups = _parameter_groups(model, config)
    match config:
        case schema.DecoupledSGDConfig():
            return DecoupledSGD(groups, lr, config.momentum, config.dampening, config.nesterov)
        case schema.SGDConfig():
            # note: not fused, whose momentum is left uninitialised if the first fp16 gradient is not finite
            return torch.optim.SGD(groups, lr, config.momentum, config.dampening, nesterov=config.nesterov)
        case schema.AdamWConfig():
            return torch.optim.AdamW(groups, lr, (config.beta1, config.beta2), config.epsilon, fused=True)
        case schema.LAMBConfig():
            from timm.optim import Lamb  # note: a second of import that other optimizers need not pay

            betas = (config.beta1, config.beta2)
            lamb: Optimizer = Lamb(groups, lr, betas=betas, eps=config.epsilon, max_grad_norm=config.max_grad_norm)
            return lamb


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _parameter_groups(model: nn.Module, config: schema.Optimizer) -> list[dict[str, Any]]:
    """All parameters, those that the config leaves out of weight decay in a group of their own."""
    if config.no_decay == "none":
        return [{"params": list(model.parameters()), "weight_decay": config.weight_decay}]
    spared = set(undecayed(model, config.no_decay))
    parameters = dict(model.named_parameters())
    return [
        {"params": [p for name, p in parameters.items() if name not in spared], "weight_decay": config.weight_decay},
        {"params": [p for name, p in parameters.items() if name in spared], "weight_decay": 0.0},
    ]


def undecayed(model: nn.Module, rule: str) -> list[str]:
    """Names of the parameters that a rule of `optimizer.no_decay` leaves out, as the model gives them.

    `norms` is torchvision's rule; `bn_names` that of ffcv-imagenet and of NVIDIA's examples, which a residual network's
    shortcut norms (`downsample.1`) escape.
    """
    match rule:
        case "vectors":
            return [name for name, parameter in model.named_parameters() if parameter.ndim <= 1]
        case "norms":
            return [
                f"{prefix}{'.' * bool(prefix)}{name}"
                for prefix, module in model.named_modules()
                if isinstance(module, _NORMS)
                for name, _ in module.named_parameters(recurse=False)
            ]
        case "bn_names":
            return [name for name, _ in model.named_parameters() if "bn" in name]
    return []


class DecoupledSGD(Optimizer):
    """SGD with momentum whose weight decay is apart from the gradient (SGDW, Loshchilov & Hutter 2019).

    With gradient g, momentum m, dampening d and peak learning rate lr0:

        b = m * b + (1 - d) * g          (b = g at a parameter's first step)
        w = w * (1 - lr / lr0 * weight_decay)
        w = w - lr * b                   (Nesterov: lr * (g + m * b))

    The decay follows the schedule's multiplier, not the size of the learning rate. `lr` of the constructor is
    lr0, kept in the parameter groups as `peak_lr` and so saved with the state.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, dampening: float, nesterov: bool):
        settings = {"lr": lr, "peak_lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        super().__init__(groups, {**settings, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            updates = self._updates(parameters, gradients, group) if group["momentum"] else gradients
            lr, peak_lr = group["lr"], group["peak_lr"]
            torch._foreach_mul_(parameters, 1 - (lr / peak_lr if peak_lr else 0.0) * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-lr)

    def _updates(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Move the momentum buffers by the gradients; returns the directions of the step."""
        buffers, pushes = [], []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if state:
                buffers.append(state["momentum_buffer"])
                pushes.append(gradient)
            else:
                state["momentum_buffer"] = gradient.clone()
        if buffers:
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, pushes, alpha=1 - group["dampening"])
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        return list(torch._foreach_add(gradients, buffers, alpha=group["momentum"])) if group["nesterov"] else buffers
