"""Schedule-Free AdamW (Defazio et al. 2024): an average of the weights instead of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT, Count, NotNegative
from launcher.later import nn, no_grad, torch
from launcher.optimizers.adam import Adam

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class ScheduleFreeAdamW(Adam):
    """AdamW without a schedule, as the authors' library computes it.

    The model's weights are y, with gradients g; the state has z, and x, the average of z, follows from y and z:

        y = beta1 * x + (1 - beta1) * z
        z = z - lr * (g / (sqrt(v / (1 - beta2^k)) + eps) + c * y)        (v: Adam's, c: weight decay)
        x = (1 - p) * x + p * z           p = q / (sum of all q),  q = k^step_power * (highest lr so far)^lr_power

    With `bias_correction` learning_rate, as the authors' submission to AlgoPerf computes it, z is instead

        z = z - lr * sqrt(1 - beta2^k) * (g / (sqrt(v) + eps) + c * y)

    Step k (from 1) has weight k^`step_power` * lr^`lr_power` in the average, which is evaluated and saved.

    `bias_correction` divides the second moment by 1 - beta2^k, as the authors' library does, or multiplies the learning
    rate, also for weight decay, by its root, as their submission to AlgoPerf does.
    Every `statistics_interval` steps a forward pass with the averaged weights updates the statistics of batch norm.
    """

    # note: each step allocates its averaging weight, and some run additional forward passes
    can_be_captured = False
    updates_statistics = True

    excludes: ClassVar[Mapping[str, str]] = {
        "evaluation_weights": "both replace the weights to evaluate and save; use one"
    }
    name: Literal["schedule_free_adamw"]
    beta1: Annotated[float, Field(gt=0, lt=1)]
    step_power: NotNegative
    lr_power: NotNegative
    bias_correction: Literal["second_moment", "learning_rate"]
    statistics_interval: Count

    def acts_at(self, plan: RunPlan, step: int) -> int:
        return step % self.statistics_interval == 0

    def notes(self, plan: RunPlan) -> Iterator[str]:
        if (schedule := plan.config.schedule.name) != "constant":
            yield (
                f"optimizer={self.name} averages weights instead of a schedule; with schedule={schedule} the learning "
                "rate also decays; with schedule=constant it does not"
            )

    def before_gradients(self, forward: Callable[[], None]) -> None:
        """Run the forward passes with the evaluated averages x at every `statistics_interval`th step."""
        if self.step_number % self.statistics_interval:
            return
        with torch.no_grad():
            parameters = self._averaged()
            before = [parameter.clone() for parameter in parameters]
            if parameters:
                torch._foreach_copy_(parameters, self._averages(parameters))
            forward()
            if parameters:
                torch._foreach_copy_(parameters, before)

    @no_grad
    def evaluation_weights(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model's state dict with the averages x as weights."""
        state = dict(model.state_dict())
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        if parameters := self._averaged():
            averages = self._averages(parameters)
            state.update({names[p]: average for p, average in zip(parameters, averages, strict=True)})
        return state

    def _update(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        beta1, lr = self.beta1, group["lr"]
        corrected = self.bias_correction == "second_moment"
        sequence = self._state(parameters, "z", torch.clone)
        # note: without a first moment
        directions = self._direction(parameters, gradients, group, 0.0, corrected)
        if not corrected:
            lr = lr * (1 - self.beta2 ** group["step"]).sqrt()
        weight = self._averaging_weight(group)
        if group["weight_decay"]:
            torch._foreach_add_(directions, parameters, alpha=group["weight_decay"])
        changes = list(torch._foreach_sub(parameters, sequence))
        torch._foreach_mul_(changes, weight)
        torch._foreach_add_(changes, torch._foreach_mul(directions, lr * (1 - beta1 * (1 - weight))))
        self._subtract(parameters, changes, 1.0)
        self._subtract(sequence, directions, lr)

    def _averaging_weight(self, group: dict[str, Any]) -> Tensor:
        """Return the weight p of this step's z in the average, float32 []."""
        steps: Tensor = group["step"]
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=steps.device)
        highest, total = (group.get(name, torch.zeros(())).to(steps.device) for name in ("highest_lr", "total_weight"))
        applied = torch.ones_like(steps) if self.found_inf is None else 1 - self.found_inf
        group["highest_lr"] = torch.where(applied > 0, torch.maximum(highest, lr), highest)
        weight = steps**self.step_power * group["highest_lr"] ** self.lr_power
        group["total_weight"] = total + weight * applied
        return torch.where(group["total_weight"] > 0, weight / group["total_weight"], 0.0)

    def _averaged(self) -> list[Tensor]:
        """Return the parameters that have been updated."""
        return [p for group in self.param_groups for p in group["params"] if "z" in self.state[p]]

    def _averages(self, parameters: list[Tensor]) -> list[Tensor]:
        sequence = [self.state[parameter]["z"] for parameter in parameters]
        return list(torch._foreach_lerp(parameters, sequence, 1 - 1 / self.beta1))
