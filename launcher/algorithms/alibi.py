"""ALiBi (Press et al. 2021): attention falls with the distance of tokens, in place of position embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.declaration import RunPlan
from launcher.config.fields import STRICT
from launcher.data.batch import Batch
from launcher.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(config=STRICT)
class Alibi(Algorithm, change_model=5, change_batch=4, acts_on=("tokens",)):
    """Adds the bias of attention, and reshapes each batch [B, T] to [n B, T / n] for n = 1 / `length_scaling`.

    Trains on sequences cut into equal parts of `length_scaling` times their length; evaluation has whole ones.
    """

    needs = "attention that takes ALiBi's bias"

    length_scaling: Annotated[float, Field(gt=0, le=1)]

    def network_values(self) -> dict[str, Any]:
        return {}

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return (round(size[0] * self.length_scaling),)

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        parts = 1 / self.length_scaling
        if not parts.is_integer() or plan.full_view % parts:
            message = f"must cut {plan.full_view} tokens into equal parts; set 1, 0.5 or 0.25"
            yield Problem(message, "length_scaling", self.length_scaling)

    def change_model(self, model: nn.Module) -> None:
        if (use := getattr(model, "use_alibi", None)) is not None:
            use()

    def change_batch(self, batch: Batch, size: Size) -> Transform:
        (length,) = self.size_after(self.context.plan, batch.moment.step, size)

        def cut(tokens: Tensor) -> Tensor:
            return tokens.reshape(-1, length)

        return Transform((), lambda batch: replace(batch, inputs=cut(batch.inputs), targets=cut(batch.targets)))
