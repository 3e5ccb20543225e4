"""The metrics of qualities: stored so that higher is better, printed as their own values."""

from typing import NamedTuple

from launcher.config.goals import Metric
from launcher.config.tasks import TASKS
from launcher.records.metrics import Row


class QualityScale(NamedTuple):
    """The metric of qualities, as printed: its title, unit, and sign, -1 if lower is better.

    The qualities of runs and curves have this sign, so that higher is better in all computations; shares are percent.
    """

    title: str
    unit: str = ""
    sign: int = 1

    @property
    def heading(self) -> str:
        return self.title + self.unit

    @property
    def factor(self) -> float:
        """Return the factor of the metric's own values."""
        return self.sign * (100.0 if self.unit else 1.0)

    def text(self, quality: float) -> str:
        """Format a quality as the metric's value."""
        return f"{self.sign * quality:.2f}{self.unit}"


TOP1 = QualityScale("top-1", " %")


def scale_of_run(start: Row) -> QualityScale:
    """Return the scale of a run's primary metric, from its first record."""
    return scale_named(str(start.get("primary")))


def scale_named(name: str) -> QualityScale:
    """Return the scale of a task's metric; that of top-1 for an unknown one."""
    metrics = {metric.name: metric for task in TASKS.declarations().values() for metric in task.metrics}
    return scale_of(metrics[name]) if name in metrics else TOP1


def scale_of(metric: Metric) -> QualityScale:
    return QualityScale(metric.title, " %" if metric.is_share else "", -1 if metric.better == "lower" else 1)
