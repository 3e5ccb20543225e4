"""Update the running statistics of batch norm in some forward passes only."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen_statistics(model: nn.Module, *, frozen: bool = True) -> Iterator[None]:
    """Make batch norm normalize by the batch without updating its running statistics, if they are to be frozen."""
    norms = [one for one in model.modules() if frozen and isinstance(one, nn.modules.batchnorm._BatchNorm)]
    tracking = [norm for norm in norms if norm.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
