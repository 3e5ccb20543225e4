"""Optimizers, built from the config, and which parameters each of their groups has.

Where the attribute `found_inf`, float32 [] on the device, is 1, a step leaves weights and state as they are, bit for
bit; torch.optim's fused ones have it too. A learning rate is a number, or float32 [] on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from launcher.config import choices
from launcher.models.parameters import KERNELS, parameter_kinds, parameters_of_head
from launcher.optimizers.adaptive import LAMB, NAdamW, ScheduleFreeAdamW
from launcher.optimizers.matrices import SOAP, Muon
from launcher.optimizers.momentum import LARS, SGD, DecoupledSGD, Lion

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def build_optimizer(config: choices.Optimizer, model: nn.Module, lr: float) -> Optimizer:
    """The optimizer that the config names, over all parameters of the model; `lr` is the schedule's peak."""
    groups = _parameter_groups(model, config)
    match config:
        case choices.DecoupledSGDConfig():
            return DecoupledSGD(groups, lr, config.momentum, config.dampening, config.nesterov)
        case choices.SGDConfig():
            return SGD(groups, lr, config.momentum, config.dampening, config.nesterov)
        case choices.LARSConfig():
            return LARS(groups, lr, config.momentum, config.trust_coefficient, config.epsilon)
        case choices.LionConfig():
            return Lion(groups, lr, (config.beta1, config.beta2))
    betas, eps = (config.beta1, config.beta2), config.epsilon
    match config:
        case choices.AdamWConfig():
            return torch.optim.AdamW(groups, lr, betas, eps, fused=True)
        case choices.NAdamWConfig():
            return NAdamW(groups, lr, betas, eps)
        case choices.LAMBConfig():
            return LAMB(groups, lr, betas, eps, max_grad_norm=config.max_grad_norm)
        case choices.MuonConfig():
            own = {"momentum": config.momentum, "nesterov": config.nesterov, "iterations": config.iterations}
            return Muon(groups, lr, betas, eps, **own)
        case choices.SOAPConfig():
            return SOAP(groups, lr, betas, eps, config.interval, config.max_side)
        case choices.ScheduleFreeAdamWConfig():
            return ScheduleFreeAdamW(groups, lr, betas, eps, config.step_power, config.lr_power)


def set_lr(optimizer: Optimizer, lr: float | Tensor) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        part, before = group.get("lr_part"), group["lr"]
        if part is None:
            group["lr"] = lr
        elif isinstance(lr, Tensor) and isinstance(before, Tensor) and before.device == lr.device:
            # note: a captured step reads it where it lies
            torch.mul(lr, part, out=before)
        else:
            group["lr"] = lr * part


def _parameter_groups(model: nn.Module, config: choices.Optimizer) -> list[dict[str, Any]]:
    """All parameters, in groups by what the config leaves out of weight decay, Muon's matrices, and the last layer."""
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": config.weight_decay}]
    if config.no_decay != "none":
        decayed, spared = _split(model, list(model.parameters()), undecayed(model, config.no_decay))
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    if isinstance(config, choices.MuonConfig):
        parts = [(group, _split(model, group["params"], orthogonal(model))) for group in groups]
        groups = [{**group, "params": part[at], "orthogonal": at == 1} for group, part in parts for at in (0, 1)]
    if config.backbone_lr != 1:
        parts = [(group, _split(model, group["params"], sorted(parameters_of_head(model)))) for group in groups]
        groups = [{**group, "params": part[1]} for group, part in parts if part[1]]
        groups += [{**group, "params": part[0], "lr_part": config.backbone_lr} for group, part in parts if part[0]]
    return groups


def _split(
    model: nn.Module, parameters: list[nn.Parameter], names: list[str]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters without those of the names, and those."""
    chosen = {id(parameter) for name, parameter in model.named_parameters() if name in names}
    return [p for p in parameters if id(p) not in chosen], [p for p in parameters if id(p) in chosen]


def orthogonal(model: nn.Module) -> list[str]:
    """Names of the parameters that Muon gives orthogonal steps: of kernels all but the head's and depthwise ones."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    kinds = parameter_kinds(model)
    return [name for name, kind in kinds.items() if kind in ("matrix", "convolution") and shapes[name][1] > 1]


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
