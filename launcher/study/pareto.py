"""The Pareto front: what no other point beats on cost and quality at once."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (cost, quality) points on the front, cheapest first.

    A point is off it if another costs no more and is no worse, and is better in one of them; equal points stay.
    """
    front: list[int] = []
    best = float("-inf")
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        quality = points[index][1]
        if quality > best or (front and points[index] == points[front[-1]]):
            front.append(index)
            best = quality
    return front
