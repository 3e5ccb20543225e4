"""Stochastic weight averaging (Izmailov et al. 2018): the mean of the weights at the end of training."""

from torch import Tensor

from launcher.algorithms.ema import Averaging
from launcher.config.algorithms import SWAConfig


class SWA(Averaging[SWAConfig]):
    """Averages the weights after `start` and every `update_interval` from then on; whole epochs at their ends.

    Batch-norm statistics are averaged too, instead of being recomputed by another pass over the data.
    """

    def rate(self, _: int) -> Tensor:
        return (1 - self._count / (self._count + 1)).float()
