"""A rank of a learning-rate range test (Smith 2017, arXiv:1506.01186): training steps at rising learning rates."""

import math
import statistics
from pathlib import Path

from launcher.measure.probes import write_result
from launcher.rank.signs import STOP, Requests
from launcher.training.trainer import Trainer

_LOWEST, _HIGHEST = 1e-5, 10.0
# The loss diverges where its mean over so many steps is so many times the lowest such mean.
_RECENT, _DIVERGED = 5, 4.0


def work(scratch: Path) -> None:
    """Write the learning rates and losses of the requested number of steps of the folder's config."""
    write_result(scratch, lambda run, steps, _: rising(run, int(steps)), lr=1.0)


def rising(run: Trainer, steps: int) -> list[tuple[float, float]]:
    """Return the learning rate of each step and its mean loss over all ranks, until the loss diverges.

    A stop request also ends it. Rates have equal ratios. run: at a constant learning rate of 1.
    """
    points: list[tuple[float, float]] = []
    lowest = math.inf
    while len(points) < steps:
        for batch in run.rest_of_epoch():
            run.train_step.lr_factor = _LOWEST * (_HIGHEST / _LOWEST) ** (len(points) / max(1, steps - 1))
            outcome = run.train_step(*batch, run.moment(run.next_step), Requests(STOP.requested))
            run.next_step += 1
            run.count(outcome, 0.0)
            loss = run.line_meter.take()().loss
            if outcome.report().requests.stop or not math.isfinite(loss):
                return points
            points.append((run.train_step.lr_factor, loss))
            recent = statistics.fmean(loss for _, loss in points[-_RECENT:])
            lowest = min(lowest, recent)
            if recent > _DIVERGED * lowest or len(points) == steps:
                return points
    return points
