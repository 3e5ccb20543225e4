"""The metrics of qualities: stored so that higher is better, printed as their own values."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from launcher.config.goals import Metric
from launcher.config.tasks import metrics_of_tasks
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

    def value_text(self, value: float) -> str:
        """Format one of the metric's own values."""
        return f"{value:.2%}" if self.unit else f"{value:.4g}"


TOP1 = QualityScale("top-1", " %")


def scale_of_run(start: Row, metric: str | None, config: Mapping[str, Any]) -> QualityScale:
    """Return the scale of a metric of a run, or of its primary one, from its first record and the config's values.

    A record of an early version has no primary metric, which is top-1.
    """
    name = metric or start.get("primary")
    if name is None:
        return TOP1
    better = config.get(f"metrics.{name}.better", start.get("better") if metric is None else None)
    return scale_named(name, "lower" if better == "lower" else "higher")


def scale_named(name: str, better: Literal["higher", "lower"] = "higher") -> QualityScale:
    """Return the scale of a task's metric, or of the user's with that name."""
    known = metrics_of_tasks()
    return scale_of(known[name][0] if name in known else Metric(name, name, better, is_share=False))


def scale_of(metric: Metric) -> QualityScale:
    return QualityScale(metric.title, " %" if metric.is_share else "", -1 if metric.better == "lower" else 1)
