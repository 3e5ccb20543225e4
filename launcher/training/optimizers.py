"""Optimizers, built from the config: SGD with decoupled decay, SGD, AdamW, LAMB.

Each goes over weights, gradients and its own state in PyTorch's fused kernels. Where the attribute `found_inf`, float32
[] on the device, is 1, a step leaves weights and state as they are, bit for bit; torch.optim's fused ones have it too.
A learning rate is a number, or float32 [] on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from launcher.algorithms.masked import Restorable
from launcher.config import schema
from launcher.models.parameters import KERNELS, parameter_kinds
from launcher.rank.peers import global_norm

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def build_optimizer(config: schema.Optimizer, model: nn.Module, lr: float) -> Optimizer:
    """The optimizer that the config names, over all parameters of the model; `lr` is the schedule's peak."""
    groups = _parameter_groups(model, config)
    match config:
        case schema.DecoupledSGDConfig():
            return DecoupledSGD(groups, lr, config.momentum, config.dampening, config.nesterov)
        case schema.SGDConfig():
            return SGD(groups, lr, config.momentum, config.dampening, config.nesterov)
        case schema.AdamWConfig():
            return torch.optim.AdamW(groups, lr, (config.beta1, config.beta2), config.epsilon, fused=True)
        case schema.LAMBConfig():
            return LAMB(groups, lr, (config.beta1, config.beta2), config.epsilon, config.max_grad_norm)


def set_lr(optimizer: Optimizer, lr: float | Tensor) -> None:
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
    shortcut norms (`downsample.1`) escape. `all_but_kernels` is big_vision's, and timm's where a model lists its own.
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
        case "all_but_kernels":
            return [name for name, kind in parameter_kinds(model).items() if kind not in KERNELS]
        case "bn_names":
            return [name for name, _ in model.named_parameters() if "bn" in name]
    return []


class SGD(Optimizer):
    """SGD with momentum, as torch.optim's computes it.

    With gradient g, weight decay c, momentum m and dampening d:

        b = m * b + (1 - d) * (g + c * w)          (b = g + c * w at the first step)
        w = w - lr * b                             (Nesterov, with d = 0: lr * (g + c * w + m * b))

    torch's own fused one leaves the momentum uninitialised where the very first step is left out.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, dampening: float, nesterov: bool):
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
        super().__init__(groups, {**settings, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(parameters, group, group["weight_decay"])

    def _update(self, parameters: list[Tensor], group: dict[str, Any], weight_decay: float) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        momentum = group["momentum"]
        buffers = self._buffers(parameters) if momentum else []
        if momentum and group["dampening"]:
            if weight_decay:
                gradients = list(torch._foreach_add(gradients, parameters, alpha=weight_decay))
            self._push(buffers, gradients, group)
            if group["nesterov"]:
                buffers = list(torch._foreach_add(gradients, buffers, alpha=momentum))
            gradients, buffers, momentum, weight_decay = buffers, [], 0.0, 0.0
        torch._fused_sgd_(
            parameters,
            gradients,
            buffers,
            lr=group["lr"],
            weight_decay=weight_decay,
            momentum=momentum,
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=False,
            found_inf=self.found_inf,
        )

    def _buffers(self, parameters: list[Tensor]) -> list[Tensor]:
        for parameter in parameters:
            if not self.state[parameter]:
                # note: the first step makes g of m * -0.0 + g, bit for bit
                self.state[parameter]["momentum_buffer"] = torch.full_like(parameter, -0.0)
        return [self.state[parameter]["momentum_buffer"] for parameter in parameters]

    def _push(self, buffers: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Move the momentum by dampened gradients, at the first step that is not left out by whole ones."""
        if "first" not in group:
            group["first"] = torch.stack([buffer.count_nonzero() == 0 for buffer in buffers]).all()
        kept = Restorable([*buffers, group["first"]])
        kept.keep()
        torch._foreach_mul_(buffers, group["momentum"])
        part = (1 - group["dampening"] * (~group["first"]).double()).to(buffers[0].dtype)
        torch._foreach_add_(buffers, torch._foreach_mul(gradients, part))
        group["first"].fill_(False)
        if self.found_inf is not None:
            kept.put_back_unless(self.found_inf == 0)


class DecoupledSGD(SGD):
    """SGD with momentum whose weight decay is apart from the gradient (SGDW, Loshchilov & Hutter 2019).

    With gradient g, momentum m, dampening d and peak learning rate lr0:

        b = m * b + (1 - d) * g          (b = g at the first step)
        w = w * (1 - lr / lr0 * weight_decay)
        w = w - lr * b                   (Nesterov: lr * (g + m * b))

    The decay follows the schedule's multiplier, not the size of the learning rate. `lr` of the constructor is
    lr0, kept in the parameter groups as `peak_lr` and so saved with the state.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, dampening: float, nesterov: bool):
        super().__init__([{"peak_lr": lr, **group} for group in groups], lr, momentum, dampening, nesterov)

    def _update(self, parameters: list[Tensor], group: dict[str, Any], weight_decay: float) -> None:
        rate = weight_decay / group["peak_lr"] if group["peak_lr"] else 0.0
        lr = group["lr"] if self.found_inf is None else group["lr"] * (1 - self.found_inf)
        if rate:
            torch._foreach_mul_(parameters, 1 - rate * lr)
        super()._update(parameters, group, 0.0)


class LAMB(Optimizer):
    """LAMB (You et al. 2020): Adam's direction, in each tensor as long as its weights; only what is decayed is scaled.

    With Adam's direction r of gradients clipped to the global norm `max_grad_norm` (null: as they are), without decay
    in it, and weight decay c:

        u = r + c * w
        w = w - lr * |w| / |u| * u       (w - lr * r where c = 0; the ratio is 1 where one of the norms is 0)
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        max_grad_norm: float | None,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "max_grad_norm": max_grad_norm}
        super().__init__(groups, {**settings, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        every = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        most = self.defaults["max_grad_norm"]
        clip = (global_norm(every) / most).clamp(min=1.0).float() if most is not None and every else None
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                directions = self._directions(parameters, group, clip)
                if group["weight_decay"]:
                    torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
                    torch._foreach_mul_(directions, _trust_ratios(parameters, directions))
                self._subtract(parameters, directions, group["lr"])

    def _directions(self, parameters: list[Tensor], group: dict[str, Any], clip: Tensor | None) -> list[Tensor]:
        """Move the moments by the gradients, divided by `clip`; returns Adam's directions."""
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                self.state[parameter]["exp_avg_sq"] = torch.zeros_like(parameter)
        steps = group.get("step", torch.zeros(())).to(parameters[0].device, torch.float32)
        group["step"] = steps.add_(1 if self.found_inf is None else 1 - self.found_inf)
        directions = list(torch._foreach_mul(parameters, 0.0))
        torch._fused_adam_(
            directions,
            [p.grad for p in parameters if p.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            [group["step"]] * len(parameters),
            lr=-1.0,  # note: from zero, so that what is moved by a step is its direction
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            grad_scale=clip,
            found_inf=self.found_inf,
        )
        return directions

    def _subtract(self, parameters: list[Tensor], directions: list[Tensor], lr: float | Tensor) -> None:
        torch._fused_sgd_(
            parameters,
            directions,
            [],
            lr=lr,
            weight_decay=0.0,
            momentum=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            found_inf=self.found_inf,
        )


def _trust_ratios(weights: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
    """Each tensor's norm over its direction's [], 1 where one of them is 0."""
    ours, theirs = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(directions))
    return list(torch.where((ours > 0) & (theirs > 0), ours / theirs, 1.0).unbind())
