"""Build the optimizer of a run: its class found by the declaration's name, its parameter groups by the config."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from launcher import optimizers
from launcher.config.choices import OptimizerConfig
from launcher.models.parameters import KERNELS, parameter_kinds, parameters_of_head
from launcher.optimizers.base import MaskedOptimizer

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def build_optimizer(config: OptimizerConfig, model: nn.Module, lr: float) -> MaskedOptimizer[Any]:
    """Build the optimizer that the config names, over all parameters of the model; `lr` is the schedule's peak."""
    kind = class_of(config)
    return kind(_parameter_groups(model, config, kind.separate_parameters(model)), lr, config)


def class_of(config: OptimizerConfig) -> type[MaskedOptimizer[Any]]:
    """Find the class named as the config's, without `Config`, in the files of this room.

    Raises:
        LookupError: there is none.
    """
    name = type(config).__name__.removesuffix("Config")
    for module in pkgutil.iter_modules(optimizers.__path__, f"{optimizers.__name__}."):
        if (kind := getattr(import_module(module.name), name, None)) is not None:
            return kind  # type: ignore[no-any-return]
    raise LookupError(f"launcher/optimizers/ has no class {name}")


def set_lr(optimizer: torch.optim.Optimizer, lr: float | Tensor) -> None:
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


def _parameter_groups(model: nn.Module, config: OptimizerConfig, separate: list[str]) -> list[dict[str, Any]]:
    """All parameters, in groups by weight decay, by what the optimizer updates separately, and by the last layer."""
    groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "weight_decay": config.weight_decay}]
    if config.no_decay != "none":
        decayed, spared = _split(model, list(model.parameters()), undecayed(model, config.no_decay))
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    split = [(group, _split(model, group["params"], separate)) for group in groups]
    groups = [{**group, "params": both[at], "separate": at == 1} for group, both in split for at in (0, 1) if both[at]]
    if config.backbone_lr != 1:
        split = [(group, _split(model, group["params"], sorted(parameters_of_head(model)))) for group in groups]
        groups = [{**group, "params": head} for group, (_, head) in split if head]
        groups += [{**group, "params": rest, "lr_part": config.backbone_lr} for group, (rest, _) in split if rest]
    return groups


def _split(
    model: nn.Module, parameters: list[nn.Parameter], names: list[str]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters without those of the names, and those."""
    chosen = {id(parameter) for name, parameter in model.named_parameters() if name in names}
    return [p for p in parameters if id(p) not in chosen], [p for p in parameters if id(p) in chosen]


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
