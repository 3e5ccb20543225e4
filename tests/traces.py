"""Trace the second step of a network, whose operations are counted and not computed."""

from collections.abc import Callable

from torch import nn

from launcher.prediction.meta_tensors import nothing_computed
from launcher.prediction.trace import Trace


def traced(step: Callable[[], object], network: nn.Module) -> Trace:
    """Trace the second step of a network, since the first one creates the optimizer's state."""
    with nothing_computed():
        with Trace():
            step()
        trace = Trace()
        end = trace.watch(network)
        with trace:
            step()
        end()
    return trace
