"""Weights of classes, which losses of classes have in common."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from launcher.config.choices import LossConfig
from launcher.config.fields import STRICT, NotNegative, OnePerClass


@dataclass(frozen=True, config=STRICT)
class ClassWeights(LossConfig):
    """Weights of classes with n training images, or a list of numbers in the order of the names.

    `auto` is n ^ -power, `effective` is (1 - beta) / (1 - beta^n) (Cui et al. 2019); their mean over training images is
    1. The loss remains the sum over samples divided by their number, in an evaluation without weights.
    """

    class_weights: Literal["none", "auto", "effective"] | OnePerClass
    class_weights_power: NotNegative
    class_weights_beta: Annotated[float, Field(ge=0, lt=1)]

    def of_classes(self, counts: np.ndarray, images: int) -> dict[str, np.ndarray]:
        weights = self.weights(counts)
        return {} if weights is None else {"weights": weights}

    def weights(self, counts: np.ndarray) -> np.ndarray | None:
        """Return the weights; with power 1 `auto` is samples / (classes * counts), as scikit-learn's "balanced"."""
        if isinstance(self.class_weights, list):
            return np.array(self.class_weights, np.float64)
        counts = np.maximum(counts, 1)
        match self.class_weights:
            case "none":
                return None
            case "auto":
                weights = counts**-self.class_weights_power
            case "effective":
                weights = (1 - self.class_weights_beta) / (1 - self.class_weights_beta**counts)
        return np.asarray(weights * counts.sum() / (weights * counts).sum())
