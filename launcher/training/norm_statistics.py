"""Update the running statistics of batch norm in some forward passes only."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Make batch norm normalize by the batch without updating its running statistics."""
    tracking = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
