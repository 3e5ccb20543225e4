"""Interpolation of a curve over the logarithm of its costs, and the Pareto front."""

import math
from collections.abc import Sequence
from itertools import pairwise


def cost_at(costs: Sequence[float], qualities: Sequence[float], quality: float) -> float:
    """Return the lowest cost of a quality on a curve; 0 if its cheapest point is better, inf if none reaches it."""
    if qualities[0] >= quality:
        return costs[0] if qualities[0] == quality else 0.0
    for (left, low), (right, high) in pairwise(zip(costs, qualities, strict=True)):
        if low < quality <= high:
            # note: a measured point keeps its exact cost, without the logarithm's rounding
            return right if quality == high else left * (right / left) ** ((quality - low) / (high - low))
    return math.inf


def quality_at(costs: Sequence[float], qualities: Sequence[float], cost: float) -> float:
    """Return a curve's quality at a cost; -inf below its cheapest point, inf above its last."""
    points = list(zip(costs, qualities, strict=True))
    if exact := [quality for measured, quality in points if measured == cost]:
        return max(exact)
    for (left, low), (right, high) in pairwise(points):
        if left < cost < right:
            return low + (high - low) * math.log(cost / left) / math.log(right / left)
    return -math.inf if cost < costs[0] else math.inf


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the (cost, quality) points on the front, cheapest first.

    A point is dominated if another one has at most its cost and at least its quality; equal points stay on the front.
    """
    front: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        quality = points[index][1]
        if quality > best or (front and points[index] == points[front[-1]]):
            front.append(index)
            best = quality
    return front
