"""The base class of all optimizers, and how a run's optimizer and its parameter groups are built.

Optimizers of libraries read the step number or the learning rate on the host, and cannot drop a step on the device.
These update weights and state by PyTorch's fused kernels, which process many tensors per launch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, Union

from pydantic.dataclasses import dataclass

from launcher.config.choices import OptimizerConfig
from launcher.config.fields import STRICT
from launcher.errors import UserError
from launcher.later import nn, no_grad, torch
from launcher.models.parameters import KERNELS, layer_depths, owned_parameters, parameter_kinds, parameters_of_head
from launcher.plugins import Complete

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
else:

    class Optimizer:
        """Stands for torch's class, which is added when one is built: every command reads the values in these files."""


Rate = Union[float, "Tensor"]


@dataclass(frozen=True, config=STRICT)
class MaskedOptimizer(Complete, OptimizerConfig, ABC, Optimizer):
    """An optimizer whose step changes no bit of weights and state if `found_inf`, float32 [] on the device, is 1.

    A config has its values; `of` gives the torch optimizer of parameters. step_number, rate: the number of the current
    step in the run, and its learning rate on the host, if known.
    """

    # Whether a CUDA graph can capture a step: state stays at its address, and the host decides nothing.
    can_be_captured = True
    # Whether only `before_gradients` updates the running statistics of batch norm.
    updates_statistics: ClassVar[bool] = False

    def __class_getitem__(cls, values: Any) -> Any:
        """Raise UserError, as an optimizer has no second class of values, which earlier versions had."""
        name = values.__name__.removesuffix("Config")
        one = f"class {name}(MaskedOptimizer), with its fields, used as self.NAME"
        raise UserError(f"{values.__name__} and {name} are one class now: write {one}")

    def of(self, groups: list[dict[str, Any]], lr: float) -> Self:
        """Return the optimizer of groups of parameters with their `weight_decay`, with state of its own.

        lr: the peak of the schedule at first; a number, or float32 [] on the device.
        """
        kind: type[Self] = _on_torch(type(self))
        one = kind.__new__(kind)
        vars(one).update(vars(self))
        one.set_up(groups, lr)
        return one

    def set_up(self, groups: list[dict[str, Any]], lr: float) -> None:
        """Make the state before the first step."""
        torch.optim.Optimizer.__init__(self, groups, {"lr": lr, "weight_decay": 0.0})
        self.found_inf: Tensor | None = None
        self.step_number = 0
        self.rate: float | None = None

    @property
    def failures(self) -> Tensor | None:
        """Return how many matrices could not be computed so far, float32 []; None if none ever is."""
        return self.param_groups[0].get("failures")

    @classmethod
    def separate_parameters(cls, model: nn.Module) -> list[str]:
        """Return the names of the parameters that get separate groups, marked by `separate`."""
        return []

    def before_gradients(self, forward: Callable[[], None]) -> None:
        """Act before the gradients of a step; `forward` runs the batch's forward passes and discards their results."""

    def evaluation_weights(self, model: nn.Module) -> dict[str, Tensor] | None:
        """Return the state dict to evaluate and save, or None for the model's."""
        return None

    @no_grad
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            if parameters := [p for p in group["params"] if p.grad is not None]:
                self._update(parameters, [p.grad for p in parameters], group)

    @abstractmethod
    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters of a group, and their state."""

    def _state(
        self, parameters: list[Tensor], name: str, start: Callable[[Tensor], Tensor] | None = None
    ) -> list[Tensor]:
        """Return a state of each parameter by name, with the initial value `start(parameter)`, or zeros."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = (start or torch.zeros_like)(parameter)
        return [self.state[parameter][name] for parameter in parameters]

    def _count(self, group: dict[str, Any], device: torch.device) -> Tensor:
        """Count the step unless it is dropped; return the count, float32 []."""
        steps: Tensor = group.get("step", torch.zeros(())).to(device, torch.float32)
        group["step"] = steps.add_(1 if self.found_inf is None else 1 - self.found_inf)
        return steps

    def _count_failures(self, number: Tensor) -> None:
        """Add to `failures`, which the state of the first group has."""
        group = self.param_groups[0]
        group["failures"] = group.get("failures", torch.zeros(())).to(number.device, torch.float32).add_(number)

    def _subtract(self, tensors: list[Tensor], directions: list[Tensor], rate: Rate, decay: float = 0.0) -> None:
        """Compute `tensors -= rate * (directions + decay * tensors)` in place."""
        self._sgd(tensors, directions, [], rate, decay)

    def _average(self, averages: list[Tensor], values: list[Tensor], rate: float) -> None:
        """Compute `averages += rate * (values - averages)` in place."""
        self._subtract(averages, list(torch._foreach_sub(averages, values)), rate)

    def _sgd(
        self,
        tensors: list[Tensor],
        gradients: list[Tensor],
        buffers: list[Tensor],
        rate: Rate,
        decay: float,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        """Take a step of PyTorch's SGD; without momentum `buffers` is empty."""
        torch._fused_sgd_(
            tensors,
            gradients,
            buffers,
            lr=rate,
            weight_decay=decay,
            momentum=momentum,
            dampening=0.0,
            nesterov=nesterov,
            maximize=False,
            is_first_step=False,
            found_inf=self.found_inf,
        )


@cache
def _on_torch(kind: Any) -> Any:
    if issubclass(kind, torch.optim.Optimizer):
        return kind
    return type(kind)(kind.__name__, (kind, torch.optim.Optimizer), {"__module__": kind.__module__})


def trust_ratios(
    weights: list[Tensor], directions: list[Tensor], *, trust: float = 1.0, decay: float = 0.0, eps: float = 0.0
) -> list[Tensor]:
    """Return `trust` * |w| / (|d| + decay * |w| + eps) [] of each tensor, 1 if one of the norms is 0."""
    of_weights, norms = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(directions))
    ratios = trust * of_weights / (norms + decay * of_weights + eps)
    return list(torch.where((of_weights > 0) & (norms > 0), ratios, 1.0).unbind())


def by_shape(parameters: list[Tensor], gradients: list[Tensor]) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Group parameters and their gradients by shape."""
    groups: dict[torch.Size, tuple[list[Tensor], list[Tensor]]] = {}
    for pair in zip(parameters, gradients, strict=True):
        for tensors, tensor in zip(groups.setdefault(pair[0].shape, ([], [])), pair, strict=True):
            tensors.append(tensor)
    return list(groups.values())


def unstacked(stacked: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Split a stack [n, ...] into tensors with the memory order of n `like` tensors of the same shape."""
    tensors = [torch.empty_like(tensor) for tensor in like]
    torch._foreach_copy_(tensors, list(stacked.view(-1, *like[0].shape).unbind()))
    return tensors


def build_optimizer(config: OptimizerConfig, model: nn.Module, lr: float) -> MaskedOptimizer:
    """Build the config's optimizer for all parameters of the model; `lr` is the peak of the schedule.

    Raises UserError if its class has values alone.
    """
    if not isinstance(config, MaskedOptimizer):
        raise UserError(f"{type(config).__name__} has no steps; write its class on MaskedOptimizer")
    return config.of(_parameter_groups(model, config, config.separate_parameters(model)), lr)


def set_lr(optimizer: torch.optim.Optimizer, lr: float | Tensor) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        factor, before = group.get("lr_factor"), group["lr"]
        if factor is None:
            group["lr"] = lr
        elif isinstance(lr, torch.Tensor) and isinstance(before, torch.Tensor) and before.device == lr.device:
            # note: captured steps read it at the same address
            torch.mul(lr, factor, out=before)
        else:
            group["lr"] = lr * factor


def _parameter_groups(model: nn.Module, config: OptimizerConfig, separate: list[str]) -> list[dict[str, Any]]:
    """Group all parameters by learning rate, the highest first, weight decay, and separate updates of the optimizer."""
    head, depths, bare = parameters_of_head(model), layer_depths(model), {*undecayed(model, config.no_decay)}
    last, backbone = max(depths.values()), 1.0 if config.backbone_lr is None else config.backbone_lr
    groups: dict[tuple[float, bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        factor = config.layer_decay ** (last - depths[name]) * (name in head or backbone)
        groups[-factor, name in bare, name in separate].append(parameter)
    return [
        {
            "params": groups[key],
            "weight_decay": 0.0 if key[1] else config.weight_decay,
            "separate": key[2],
            **({} if key[0] == -1 else {"lr_factor": -key[0]}),
        }
        for key in sorted(groups)
    ]


def undecayed(model: nn.Module, rule: str) -> list[str]:
    """Return the names of the parameters that have no weight decay by a rule of `optimizer.no_decay`.

    `norms` is torchvision's rule; `bn_names` that of ffcv-imagenet and NVIDIA's examples, which omits the norms
    of a ResNet's shortcuts (`downsample.1`). `all_but_kernels` is big_vision's, and timm's for models with own lists.
    """
    match rule:
        case "vectors":
            return [name for name, parameter in model.named_parameters() if parameter.ndim <= 1]
        case "norms":
            norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
            return [name for name, _, module in owned_parameters(model) if isinstance(module, norms)]
        case "all_but_kernels":
            return [name for name, kind in parameter_kinds(model).items() if kind not in KERNELS]
        case "bn_names":
            return [name for name, _ in model.named_parameters() if "bn" in name]
    return []
