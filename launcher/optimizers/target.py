"""Optimizers by `_target_`: classes with the interface of torch.optim, in a wrapper that drops a step on the device."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from launcher.compute.accelerator import has_streams
from launcher.compute.foreach import Snapshot
from launcher.config.choices import Beta
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, NotNegative, Positive, Probability
from launcher.config.targets import Called
from launcher.errors import Problem
from launcher.later import no_grad, torch
from launcher.optimizers.base import MaskedOptimizer

if TYPE_CHECKING:
    from torch import Tensor

# The keywords of packaged options that their targets name otherwise.
_THEIRS = {"epsilon": "eps", "trust_coefficient": "trust_coeff"}
# How a class computes, which its results do not depend on but for rounding.
_KINDS = ("fused", "foreach", "capturable")
# Classes without `capturable` that take a learning rate on the device, and the keyword with which they do.
_CAPTURED = {"timm.optim.Lars": {"foreach": True}, "timm.optim.Lion": {"foreach": False}}


def _chosen(keywords: Mapping[str, Any]) -> bool:
    """Return whether a user chose how the class computes."""
    return any(keywords.get(name) is not None for name in ("fused", "foreach")) or bool(keywords.get("capturable"))


def needs_momentum(values: Any) -> Iterator[Problem]:
    """Yield the error of Nesterov's momentum of 0."""
    if getattr(values, "nesterov", False) and not values.momentum:
        message = "needs momentum above 0; set optimizer.nesterov=false for plain SGD"
        yield Problem(message, "optimizer.nesterov", values.nesterov)


@dataclass(frozen=True, config=STRICT)
class OptimizerTarget(Called, MaskedOptimizer):
    """Drops a step on the device without changing a bit: torch's fused classes read the flag, other steps are undone.

    The host reads the flag where the state of a parameter starts, for classes that count on the host, and on a CPU for
    those that are not fused. The target gets parameter groups, `lr` and `weight_decay`, if it takes them, and its
    keywords.
    """

    libraries = ("torch.optim", "timm.optim")
    filled = ("params",)
    taken = ("lr", "weight_decay")
    stated = MappingProxyType(
        {
            **{"momentum": Probability, "beta1": Beta, "beta2": Beta, "epsilon": Positive},
            **{"trust_coefficient": Positive, "lars.epsilon": NotNegative},
        }
    )

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        scaled = {"reference_batch_size": 256, "scale_lr": "off", "backbone_lr": 1.0, "layer_decay": 1.0}
        return {**scaled, "weight_decay": 0.0, "no_decay": "none"}

    def accepts(self, *names: str) -> bool:
        """Return whether the target has one of the keywords."""
        return bool({*names} & inspect.signature(self.called).parameters.keys())

    def keywords(self) -> dict[str, Any]:
        own = super().keywords()
        if not self.is_packaged:
            return own if _chosen(own) else {name: value for name, value in own.items() if name not in _KINDS}
        betas = {"betas": (own.pop("beta1"), own.pop("beta2"))} if "beta1" in own else {}
        return {_THEIRS.get(name, name): value for name, value in own.items()} | betas

    def kind(self, on_gpu: bool) -> dict[str, bool]:
        """Return the keywords for few launches, and on a GPU for a rate and steps there, unless the option has some."""
        if _chosen(super().keywords()) or not (self.is_packaged or on_gpu):
            return {}
        fewest = "fused" if self.accepts("fused") else "foreach"
        kind = _CAPTURED.get(self.target, {fewest: True, "capturable": on_gpu})
        return {name: value for name, value in kind.items() if self.accepts(name)}

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if self.is_packaged:
            yield from needs_momentum(self)
        elif self.weight_decay and not self.accepts("weight_decay"):
            yield Problem(f"{self.target} has no weight decay; set 0", "optimizer.weight_decay", self.weight_decay)

    def set_up(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().set_up(groups, lr)
        device = groups[0]["params"][0].device
        usual = {"lr": lr, "weight_decay": self.weight_decay}
        usual = {name: value for name, value in usual.items() if self.accepts(name)}
        self.inner = self.built(params=groups, **usual, **self.kind(has_streams(device)))
        self._fused = bool(self.inner.defaults.get("fused"))
        self._waits = not (has_streams(device) or (self._fused and device.type == "cpu"))
        is_capturable = self._fused or bool(self.inner.defaults.get("capturable"))
        self.can_be_captured = is_capturable or self.target in _CAPTURED
        self._share()

    def _share(self) -> None:
        self.state, self.param_groups = self.inner.state, self.inner.param_groups
        self._begun: set[Tensor] = set()

    @no_grad
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        new, dropped = {*parameters} - self._begun, self.found_inf
        self.inner.found_inf = None
        for group in self.param_groups if not self.can_be_captured else ():
            rate = float(group["lr"]) if self.rate is None else self.rate * group.get("lr_factor", 1.0)
            group["lr"] = rate
        with self.naming("step fails"):
            if self._waits or new or dropped is None:
                # note: a tensor without values, of which steps are counted, reads as a number other than 0
                if dropped is None or (1 - dropped).item():
                    self._begin(parameters)
            elif self._fused:
                self.inner.found_inf = dropped
                self.inner.step()
            else:
                states = [value for p in parameters for value in self.state[p].values()]
                before = Snapshot([*parameters, *(one for one in states if isinstance(one, torch.Tensor))])
                before.take()
                self.inner.step()
                before.restore_unless(dropped == 0)

    def _begin(self, parameters: list[Tensor]) -> None:
        """Take a step in which the state of parameters may start."""
        before = [{**group} for group in self.param_groups]
        with_state, without = ([p for p in parameters if bool(self.state.get(p)) == has] for has in (True, False))
        # note: torch's fused SGD starts the momenta of all parameters or of none
        for rest in (with_state, without) if self._fused and with_state and without else ([],):
            gradients = [(parameter, parameter.grad) for parameter in rest]
            for parameter, _ in gradients:
                parameter.grad = None
            self.inner.step()
            for parameter, gradient in gradients:
                parameter.grad = gradient
        self._begun.update(parameters)
        self._waits = self._waits or _counts_on_host(self.inner, before)

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Is not called: `step` calls the target's."""

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(_completed(state_dict, self.param_groups))
        self._share()


def _counts_on_host(inner: torch.optim.Optimizer, before: list[dict[str, Any]]) -> bool:
    """Return whether a step has changed what the device cannot restore: values of groups, and state elsewhere."""
    of_groups = [
        (name, one, group) for group, now in zip(before, inner.param_groups, strict=True) for name, one in now.items()
    ]
    changed = any(
        name != "lr" and (isinstance(one, torch.Tensor) or one is not group.get(name)) for name, one, group in of_groups
    )
    states = [(parameter.device, one) for parameter, state in inner.state.items() for one in state.values()]
    return changed or any(
        one.device != device if isinstance(one, torch.Tensor) else not isinstance(one, bool | None)
        for device, one in states
    )


def _completed(state: Mapping[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a saved state with this device's way to compute; of an optimizer of this project in its library's form."""
    saved = [
        {**now, **group, **{k: now[k] for k in _KINDS if k in now}}
        for now, group in zip(groups, state["param_groups"], strict=True)
    ]
    of_parameters = {number: {**own} for number, own in state["state"].items()}
    for now, before, group in zip(groups, state["param_groups"], saved, strict=True):
        if now.keys() - before.keys() and "step" in before:
            count = group.pop("step")
            for number in before["params"]:
                if number in of_parameters:
                    of_parameters[number]["step"] = count.clone()
    return {"state": of_parameters, "param_groups": saved}
