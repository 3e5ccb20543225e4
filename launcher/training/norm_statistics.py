"""Update the running statistics of batch norm in some forward passes only, and in few launches."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
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


@contextmanager
def counted_together(norms: Iterable[nn.modules.batchnorm._BatchNorm]) -> Iterator[None]:
    """Make torch's own layers of batch norm count a forward pass in one kernel launch, not in one each."""
    # note: layers of other classes may count several times in a pass
    layers = [one for one in norms if type(one) is nn.BatchNorm2d and one.training and one.track_running_stats]
    layers = [one for one in layers if one.momentum is not None]
    counts = [layer.get_buffer("num_batches_tracked") for layer in layers]
    for layer in layers:
        layer._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for layer, count in zip(layers, counts, strict=True):
            layer._buffers["num_batches_tracked"] = count
    if counts:
        torch._foreach_add_(counts, 1)
