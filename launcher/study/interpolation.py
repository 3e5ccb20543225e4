"""Reading a tradeoff curve between its measured points, and never beyond them.

Between two points quality is linear in the logarithm of the cost: costs are compared as ratios.
All functions work on many resampled curves at once: costs and qualities of shape (..., points), cheapest first.
Where a curve was not measured they give -inf or +inf, on the side on which the answer lies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def cost_at(costs: Floats, qualities: Floats, quality: Floats | float) -> Floats:
    """The least cost at which each curve reaches a quality, shape (...).

    0 if its cheapest point is better already, +inf if no point reaches it.
    """
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    wanted = np.broadcast_to(np.asarray(quality, float), costs.shape[:-1])
    found = np.full(costs.shape[:-1], np.inf)
    # note: from the dearest segment to the cheapest, so that the first crossing has the last word
    for left in range(costs.shape[-1] - 2, -1, -1):
        low, high = qualities[..., left], qualities[..., left + 1]
        crosses = (low < wanted) & (wanted <= high)
        part = np.divide(wanted - low, high - low, out=np.ones_like(low), where=crosses)
        log_cost = (1 - part) * np.log(costs[..., left]) + part * np.log(costs[..., left + 1])
        # note: exactly the measured cost at a measured point, not its logarithm's rounding
        at_point = crosses & (part == 1)
        found = np.where(crosses, np.where(at_point, costs[..., left + 1], np.exp(log_cost)), found)
    first = qualities[..., 0]
    return np.where(first == wanted, costs[..., 0], np.where(first > wanted, 0.0, found))


def quality_at(costs: Floats, qualities: Floats, cost: Floats | float) -> Floats:
    """Each curve's quality at a cost, shape (...); -inf below its cheapest point, +inf beyond its dearest."""
    costs, qualities = np.broadcast_arrays(np.asarray(costs, float), np.asarray(qualities, float))
    wanted = np.broadcast_to(np.asarray(cost, float), costs.shape[:-1])
    found = np.where(wanted < costs[..., 0], -np.inf, np.inf)
    for left in range(costs.shape[-1] - 1):
        low, high = costs[..., left], costs[..., left + 1]
        inside = (low <= wanted) & (wanted <= high) & (low < high)
        part = np.divide(np.log(wanted / low), np.log(high / low), out=np.zeros_like(low), where=inside)
        value = (1 - part) * qualities[..., left] + part * qualities[..., left + 1]
        found = np.where(inside, value, found)
    # note: a measured cost gives its measured quality; of points of one cost the best
    for point in range(costs.shape[-1]):
        exact = costs[..., point] == wanted
        better = np.isinf(found) | (qualities[..., point] > found)
        found = np.where(exact & better, qualities[..., point], found)
    return found
