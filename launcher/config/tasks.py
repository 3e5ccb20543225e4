"""Tasks without tensors: the values, outputs and metrics of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from launcher.config.choices import by_name, declared
from launcher.config.declaration import Declaration, RunPlan
from launcher.config.fields import STRICT, target_parts
from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.config.schema import BCE, Columns, CrossEntropy, Dataset, RunConfig, Stop


class Metric(NamedTuple):
    """A metric of an evaluation; shares are in [0, 1] and printed in percent.

    name: in records, checkpoints and `target`. title: in text. in_line: whether an evaluation's line has it; `if_other`
    than the primary metric.
    """

    name: str
    title: str
    better: Literal["higher", "lower"] = "higher"
    is_share: bool = True
    in_line: Literal["always", "if_other", "never"] = "always"

    def is_better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another; False if one is NaN."""
        return value > other if self.better == "higher" else value < other

    def gain(self, value: float, other: float) -> float:
        """Return by how much a value is better than another; NaN if one is NaN."""
        return value - other if self.better == "higher" else other - value

    def best(self, values: Iterable[float | None]) -> float | None:
        """Return the best value, ignoring None; None without a value."""
        choose = max if self.better == "higher" else min
        return choose((value for value in values if value is not None), default=None)

    def text(self, value: float | None, digits: int = 2) -> str:
        """Format a value with its unit."""
        value = math.nan if value is None else value
        return f"{value:.{digits}%}" if self.is_share else f"{value:.{digits + 2}g}"


class Goal(NamedTuple):
    """A metric's value that ends a run: `target=top1:0.759`."""

    metric: Metric
    value: float

    def is_reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Return whether an evaluation's metrics reach the goal."""
        value = metrics.get(self.metric.name)
        return value is not None and (value == self.value or self.metric.is_better(value, self.value))


class Patience(NamedTuple):
    """So many evaluations in a row without a gain of more than `min_delta` in a metric end a run (early stopping)."""

    metric: Metric
    evaluations: int
    min_delta: float

    def is_over(self, history: Iterable[Mapping[str, float | None]]) -> bool:
        """Return whether the last evaluations of a run, all of whose metrics are given in order, have no gain."""
        best, without = -math.inf if self.metric.better == "higher" else math.inf, 0
        for metrics in history:
            value = metrics.get(self.metric.name)
            value = math.nan if value is None else value
            best, without = (value, 0) if self.metric.gain(value, best) > self.min_delta else (best, without + 1)
        return without >= self.evaluations


@dataclass(frozen=True, config=STRICT)
class TaskConfig(Declaration):
    """Base of all tasks; `launcher.tasks` has the tensor part, by name.

    metrics: those of an evaluation; the first is the primary one, which decides the best checkpoint.
    weighs_classes: its loss has `loss.class_weights`.
    labelled: what the label of an image is: one class, several, or numbers.
    """

    metrics: ClassVar[tuple[Metric, ...]]
    weighs_classes: ClassVar[bool] = False
    labelled: ClassVar[Literal["class", "classes", "numbers"]] = "class"

    name: str

    @property
    def primary(self) -> Metric:
        """Return the metric that compares runs."""
        return self.metrics[0]

    def outputs(self, dataset: Dataset) -> int:
        """Return the number of outputs per image."""
        assert dataset.classes is not None
        return dataset.classes

    def read_labels(self, texts: Sequence[str], columns: Columns) -> tuple[list[str], list[Any]]:
        """Return the names of classes or numbers, and for each text of a label its class, or its row of all names.

        Raises:
            UserError: a text is no label of the task.
        """
        if "" in texts or isinstance(columns.label, list):
            message = f"task={self.name} needs one class an image; set one column without empty rows"
            raise UserError(Problem(message, "dataset.columns.label", columns.label))
        return [*texts], [*range(len(texts))]

    def scores(self, loss: CrossEntropy | BCE) -> Literal["softmax", "sigmoid"] | None:
        """Return the function from outputs to class probabilities; None if an export has none."""
        return None

    def means(self, sums: Sequence[float], samples: int) -> list[float]:
        """Return the metrics of an evaluation from the sums over its samples."""
        return [total / samples for total in sums]

    def goal(self, target: str) -> Goal:
        """Parse a target.

        Raises UserError if the task has no such metric, or the value is out of range.
        """
        name, value = target_parts(target)
        metric = self._metric(name, "target", target, f":{value:g}")
        if metric.is_share and not 0 < value <= 1:
            message = f"{name} must be above 0 and at most 1, such as {name}:0.759"
            raise UserError(Problem(message, "target", target))
        return Goal(metric, value)

    def patience(self, stop: Stop) -> Patience | None:
        """Return the rule of early stopping; None without one.

        Raises:
            UserError: the task has no such metric.
        """
        metric = self.primary if stop.metric is None else self._metric(stop.metric, "stop.metric", stop.metric)
        return None if stop.patience is None else Patience(metric, stop.patience, stop.min_delta)

    def ended_by(self, config: RunConfig, history: Sequence[Mapping[str, float | None]]) -> str | None:
        """Return the key that ends a run after these evaluations, `target` or `stop.patience`; None if none does."""
        if config.target is not None and any(map(self.goal(config.target).is_reached, history)):
            return "target"
        patience = self.patience(config.stop)
        return "stop.patience" if patience is not None and patience.is_over(history) else None

    def _metric(self, name: str, key: str, value: str, end: str = "") -> Metric:
        """Return the metric of a name, which a value of the config has; `end` follows it there."""
        from launcher.config.keys import nearest  # note: which imports the schema

        metrics = {metric.name: metric for metric in self.metrics}
        if name not in metrics:
            close = nearest(name, metrics) or self.primary.name
            message = f"task={self.name} has no metric {name}, only {', '.join(metrics)}; did you mean {close}{end}?"
            raise UserError(Problem(message, key, value))
        return metrics[name]

    def text(self, metrics: Mapping[str, float | None], digits: int = 2) -> str:
        """Format an evaluation's metrics as one line."""
        texts = {metric: metric.text(metrics.get(metric.name), digits) for metric in self.metrics}
        other = ["always", "if_other"]
        first = texts[self.primary]
        return "  ".join(f"{m.title} {text}" for m, text in texts.items() if m.in_line in other[: 1 + (text != first)])


@dataclass(frozen=True, config=STRICT)
class ClassificationConfig(TaskConfig):
    """Classification of each image into one class.

    Balanced accuracy is the mean recall of classes with images, macro F1 the mean over classes with images or
    predictions, as scikit-learn's.
    """

    metrics = (
        Metric("top1", "top-1"),
        Metric("top5", "top-5"),
        Metric("balanced_accuracy", "balanced accuracy", in_line="if_other"),
        Metric("macro_f1", "macro F1", in_line="never"),
    )
    weighs_classes = True

    name: Literal["classification"]

    def means(self, sums: Sequence[float], samples: int) -> list[float]:
        top1, top5, *counts = sums
        classes = len(counts) // 3
        hits, images, predicted = (counts[part * classes : (part + 1) * classes] for part in range(3))
        recalls = [hit / n for hit, n in zip(hits, images, strict=True) if n]
        f1 = [2 * hit / (n + m) for hit, n, m in zip(hits, images, predicted, strict=True) if n + m]
        return [top1 / samples, top5 / samples, sum(recalls) / len(recalls), sum(f1) / len(f1)]

    def scores(self, loss: CrossEntropy | BCE) -> Literal["softmax", "sigmoid"]:
        return "sigmoid" if loss.name == "bce" else "softmax"

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if plan.config.dataset.classes == 1:
            message = "needs at least two classes"
            yield Problem(message, "dataset.classes", 1)


if TYPE_CHECKING:
    Task = TaskConfig
else:
    Task = by_name(*declared(TaskConfig))
