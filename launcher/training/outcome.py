"""What the host learns of a step, one step late: the only place of training where a value of the device is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from launcher.data.batch import Moment
from launcher.rank.stop import Requests


class AsyncRead:
    """Copy values from the device to the host, which waits for them only when it reads them."""

    def __init__(self, values: Tensor):
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values.clone()

    def read(self) -> list[float]:
        """The values; waits until the device has computed them, and for nothing queued since."""
        if self._copied is not None:
            self._copied.synchronize()
        values: list[float] = self._values.tolist()
        return values


@dataclass(frozen=True)
class StepReport:
    """What the host learns of a step.

    loss: this rank's. gradient_norm: of the averaged gradients. finite: whether both were, on all ranks. requests: of
    any rank, when the step began.
    """

    loss: float
    gradient_norm: float
    finite: bool
    requests: Requests


@dataclass(frozen=True)
class StepOutcome:
    """A step that the device was given; one that is not finite leaves everything as it was.

    indices: int64 [B], the samples of this rank. loss_and_count: their mean loss and 1, or twice 0 where the step is
    not finite, float32 [2] on the device. values: on their way to the host. release: has the device take steps again
    after it dropped one.
    """

    moment: Moment
    indices: np.ndarray
    loss_and_count: Tensor
    values: AsyncRead
    release: Callable[[], None]

    def report(self) -> StepReport:
        """Report how the step ended; waits for the device to finish it, and for nothing queued since."""
        loss, norm, bad, _, stop, save = self.values.read()
        if bad:
            self.release()
        return StepReport(loss, norm, not bad, Requests(bool(stop), bool(save)))
