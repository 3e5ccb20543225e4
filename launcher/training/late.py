"""What the host learns of the device, a step late: the only place of a training step where a value is read."""

from __future__ import annotations

import torch
from torch import Tensor


class HostCopy:
    """Values on their way from the device to the host, which waits for them only when it reads them."""

    def __init__(self, values: Tensor):
        self._arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values.clone()

    def read(self) -> list[float]:
        """The values; waits until the device has made them, and for nothing that it was given since."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[float] = self._values.tolist()
        return values
