"""The focal loss: binary cross-entropy of each class in which easy cases count less (Lin et al. 2017)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import LossFunction
from launcher.config.fields import STRICT, Fraction, NotNegative
from launcher.config.tasks import TaskConfig
from launcher.data.batch import one_hot
from launcher.later import F
from launcher.losses.class_weights import ClassWeights

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class Focal(ClassWeights):
    """Multiplies each term by (1 - p)^gamma, with p the probability of the target; `alpha` weighs present classes.

    Absent ones are weighed by 1 - alpha; null weighs neither.
    """

    labels = ("class", "classes")
    scores = "sigmoid"

    name: Literal["focal"]
    gamma: NotNegative
    alpha: Fraction | None

    def function(self, task: TaskConfig) -> LossFunction:
        return partial(focal, gamma=self.gamma, alpha=self.alpha, of_samples=task.labelled == "class")


def focal(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    gamma: float,
    alpha: float | None,
    of_samples: bool = True,
) -> Tensor:
    """Return the focal loss of logits, summed over classes and averaged over samples.

    weights: of classes, float32 [C]; `of_samples` multiplies all terms of a sample by the mean weight of its target.
    """
    logits, soft = logits.float(), one_hot(targets, logits.shape[1]).float()
    probability = logits.sigmoid()
    # note: roots have no gradient at 0
    missed = (probability + soft - 2 * probability * soft).clamp(min=1e-12)
    terms = F.binary_cross_entropy_with_logits(logits, soft, reduction="none") * missed**gamma
    if alpha is not None:
        terms = terms * (alpha * soft + (1 - alpha) * (1 - soft))
    if weights is not None:
        terms = terms * ((soft * weights).sum(1, keepdim=True) if of_samples else weights)
    return terms.sum() / len(logits)
