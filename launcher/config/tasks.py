"""Tasks without tensors: the values, outputs and metrics of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from launcher.config.choices import by_name, declared
from launcher.config.declaration import Declaration, RunPlan
from launcher.config.fields import STRICT, target_parts
from launcher.config.goals import Goal, Metric, Patience
from launcher.errors import Problem, UserError

if TYPE_CHECKING:
    from launcher.config.schema import Columns, Dataset, Loss, RunConfig, Stop


@dataclass(frozen=True, config=STRICT)
class TaskConfig(Declaration):
    """Base of all tasks; `launcher.tasks` has the tensor part, by name.

    metrics: those of an evaluation; the first is the primary one, which decides the best checkpoint.
    weighs_classes: its loss has `loss.class_weights`.
    needs: the parts of a record that it is made for: image and label, image and mask, or tokens.
    labelled: what the label of an image is: one class, several, or numbers.
    losses: those that it has. predicted: what a prediction has: a name, and its probability or another number.
    facts: the keywords of its implementation that a run computes, numbers or one number for each output.
    gathers: its metrics need the outputs for all images at once (`launcher.tasks`), not sums.
    """

    metrics: ClassVar[tuple[Metric, ...]]
    weighs_classes: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("image", "label")
    labelled: ClassVar[Literal["class", "classes", "numbers"]] = "class"
    losses: ClassVar[tuple[str, ...]] = ("cross_entropy", "bce")
    predicted: ClassVar[tuple[str, str]] = ("class", "probability")
    facts: ClassVar[tuple[str, ...]] = ()
    gathers: ClassVar[bool] = False

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

        Raises UserError if a text is no label of the task.
        """
        if "" in texts or isinstance(columns.label, list):
            message = f"task={self.name} needs one class an image; set one column without empty rows"
            raise UserError(Problem(message, "dataset.columns.label", columns.label))
        return [*texts], [*range(len(texts))]

    def of_training(self, labels: Any) -> dict[str, Any]:
        """Return its `facts` that are computed from the training labels."""
        return {}

    def of_evaluation(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return its `facts` that are computed in an evaluation."""
        return {}

    def counted(self, outputs: int | None) -> str:
        """Return a number of outputs with their name, such as `10 classes`."""
        one, several = ("number", "numbers") if self.labelled == "numbers" else ("class", "classes")
        return f"{outputs:,} {one if outputs == 1 else several}"

    def scores(self, loss: Loss) -> Literal["softmax", "sigmoid", "numbers"] | None:
        """Return the function from outputs to class probabilities, or `numbers`; None if an export has none."""
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

        Raises UserError if the task has no such metric.
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

    def scores(self, loss: Loss) -> Literal["softmax", "sigmoid"]:
        return "sigmoid" if loss.name == "bce" else "softmax"

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        if plan.config.dataset.classes == 1:
            message = "needs at least two classes"
            yield Problem(message, "dataset.classes", 1)


@dataclass(frozen=True, config=STRICT)
class MultilabelConfig(TaskConfig):
    """Any number of the classes in each image.

    mAP is the mean average precision over classes with images, as scikit-learn's. F1 counts all labels together
    (micro), at the threshold of the probabilities that has the highest F1 on the evaluated images.
    """

    metrics = (Metric("map", "mAP"), Metric("f1", "F1"), Metric("threshold", "threshold"))
    weighs_classes = True
    labelled = "classes"
    losses = ("bce",)
    facts = ("threshold",)
    gathers = True

    name: Literal["multilabel"]

    def read_labels(self, texts: Sequence[str], columns: Columns) -> tuple[list[str], list[Any]]:
        rows = [[part.strip() for part in text.split(columns.separator)] for text in texts]
        if isinstance(columns.label, list):
            return columns.label, [[_is_set(part, columns.label) for part in row] for row in rows]
        present = [{part.zfill(4) if part.isdecimal() else part for part in row if part} for row in rows]
        names = sorted(set().union(*present))
        return names, [[name in row for name in names] for row in present]

    def of_evaluation(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        return {"threshold": metrics["threshold"]}

    def scores(self, loss: Loss) -> Literal["sigmoid"]:
        return "sigmoid"


def _is_set(text: str, columns: list[str]) -> bool:
    """Return whether a column's value states that an image has its label.

    Raises UserError if it is neither 0 nor 1.
    """
    states = {
        **dict.fromkeys(("1", "0001", "1.0", "true"), True),
        **dict.fromkeys(("", "0", "0000", "0.0", "false"), False),
    }
    if (state := states.get(text.lower())) is None:
        raise UserError(Problem(f"has the value {text}; write 1 or 0", "dataset.columns.label", columns))
    return state


@dataclass(frozen=True, config=STRICT)
class RegressionConfig(TaskConfig):
    """One or several numbers of each image; the network learns them with mean 0 and standard deviation 1.

    MAE is the mean absolute error, R2 the coefficient of determination as scikit-learn's; both are means over numbers.
    R2 of a number that never changes is 1 without an error, else 0.
    """

    metrics = (Metric("mae", "MAE", better="lower", is_share=False), Metric("r2", "R2", is_share=False))
    labelled = "numbers"
    losses = ("mse", "l1", "huber")
    predicted = ("name", "value")
    facts = ("shift", "scale")

    name: Literal["regression"]

    def read_labels(self, texts: Sequence[str], columns: Columns) -> tuple[list[str], list[Any]]:
        key, name = "dataset.columns.label", columns.label
        rows = []
        for text in texts:
            try:
                rows.append([float(part) for part in text.split(columns.separator)])
            except ValueError:
                message = f"has {text!r}, which is no number; set a column of numbers, or a list of such columns"
                raise UserError(Problem(message, key, name)) from None
            width = len(name) if isinstance(name, list) else len(rows[0])
            if len(rows[-1]) != width or not all(map(math.isfinite, rows[-1])):
                message = f"has {text!r}, but needs {width} finite numbers; add them, or remove the row"
                raise UserError(Problem(message, key, name))
        if isinstance(name, list):
            return name, rows
        name = name or "value"
        return [name] if len(rows[0]) == 1 else [f"{name} {number}" for number in range(len(rows[0]))], rows

    def of_training(self, labels: Any) -> dict[str, Any]:
        mean, std = labels.mean(0, dtype="float64"), labels.std(0, dtype="float64")
        # note: a number that never changes has no scale
        return {"shift": mean.tolist(), "scale": [value or 1.0 for value in std.tolist()]}

    def means(self, sums: Sequence[float], samples: int) -> list[float]:
        parts = len(sums) // 4
        absolute, squared, total, squares = (sums[part * parts : (part + 1) * parts] for part in range(4))
        around = [square - one**2 / samples for one, square in zip(total, squares, strict=True)]
        # note: less than a trillionth is rounding, since the targets are float32
        r2 = [
            1 - error / of if of > 1e-12 * square else float(error == 0)
            for error, of, square in zip(squared, around, squares, strict=True)
        ]
        return [sum(absolute) / len(absolute) / samples, sum(r2) / len(r2) if samples > 1 else math.nan]

    def scores(self, loss: Loss) -> Literal["numbers"]:
        return "numbers"


if TYPE_CHECKING:
    Task = TaskConfig
else:
    Task = by_name(*declared(TaskConfig))
