"""Averages of weights by powers of time, and their sum that has another length (Karras et al. 2024; no torch).

An average at step t gives the weights of step s <= t the weight (s / t) ^ exponent. Its length is the standard
deviation of this profile as a fraction of t (sigma_rel, section 3.1). Equations and algorithms are those of appendix C.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from launcher.errors import Problem, UserError

# The lengths of the averages that a run keeps, and the least and the longest one that is made of their snapshots.
LENGTHS = (0.05, 0.1)
LEAST, MOST = 0.01, 0.25
# Error from which a note advises more snapshots.
_MUCH = 0.1


def lengths_of(text: str, option: str) -> list[float]:
    """Read lengths such as `0.02,0.05`.

    Raises UserError if one is no number between LEAST and MOST.
    """
    try:
        lengths = [float(part) for part in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or not all(LEAST <= length <= MOST for length in lengths):
        message = f"must be fractions of the run between {LEAST} and {MOST}, such as 0.02,0.05"
        raise UserError(Problem(message, option, text))
    return lengths


def exponent(length: float) -> float:
    """Return the exponent of the average of a length, by algorithm 2."""
    square = length**-2
    return float(np.roots([1, 7, 16 - square, 12 - square]).real.max())


def rate(length: float, step: int, interval: int) -> float:
    """Return the weight of the current weights in the update after `step` steps, every `interval`, by equation 127."""
    return float(1 - (1 - interval / step) ** (exponent(length) + 1))


def coefficients(steps: Sequence[int], lengths: Sequence[float], step: int, length: float) -> tuple[np.ndarray, float]:
    """Return the factors of averages by which their sum is next to that of `length` at `step`, by algorithm 3.

    steps, lengths: those of the averages [N]. The factors, float64 [N], have the sum 1. The second number is the error:
    the distance of the profiles relative to the norm of that of `length`.
    """
    ends, powers = np.array([*steps, step], float), np.array([exponent(one) for one in (*lengths, length)])
    products = _product(ends[:, None], powers[:, None], ends, powers)
    factors = np.linalg.solve(products[:-1, :-1], products[:-1, -1])
    factors /= factors.sum()
    whole = np.append(factors, -1)
    return factors, float(np.sqrt(max(0, whole @ products @ whole) / products[-1, -1]))


def notes(average: Mapping[str, float] | None) -> list[str]:
    """Return a note on the average of a checkpoint or model card, if it is far from that of its length."""
    if average is None or average["error"] < _MUCH:
        return []
    of_length = f"the average of length {average['length']:g} has an error of {average['error']:.0%}"
    return [f"{of_length}; train with a shorter algorithms.ema.snapshots"]


def _product(end: np.ndarray, power: np.ndarray, other_end: np.ndarray, other_power: np.ndarray) -> np.ndarray:
    """Return the integral of the product of profiles, by equation 151."""
    raised = (end / other_end) ** np.where(end < other_end, other_power, -power)
    return np.asarray(
        (power + 1) * (other_power + 1) * raised / ((power + other_power + 1) * np.maximum(end, other_end))
    )
