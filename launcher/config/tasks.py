"""What every task declares without tensors: its values, records, outputs and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from launcher.config.declaration import Declaration, Size
from launcher.config.fields import STRICT, size_text, target_parts
from launcher.config.goals import Goal, Metric, Patience
from launcher.config.options import Group
from launcher.config.similar import nearest
from launcher.config.targets import Called
from launcher.errors import Problem, UserError
from launcher.plugins import Complete

if TYPE_CHECKING:
    from launcher.config.choices import LossConfig, Scores
    from launcher.config.schema import Columns, Dataset, RunConfig, Stop


def flag_of(name: str) -> str:
    """Return a flag as it is typed from its name in the parsed command line."""
    return "--" + name.replace("_", "-")


# What predictions have that is in [0, 1].
SHARES = ("probability", "share")


class TaskConfig(Complete, Declaration, ABC):
    """Base of the values of all tasks; each is in a file of `launcher.tasks`, with its code.

    metrics: those of an evaluation; the first is the primary one unless a run has `metric`.
    weighs_classes: its loss has `loss.class_weights`.
    needs: the parts of a record that it is made for: image and label, image and mask, or tokens.
    axes: the last dimensions of an input that its view counts: 2 of an image, 1 of a sequence. unit, view_title: of a
    view. view_keys: those of `full_size` and `evaluation_size`, for errors.
    labelled: what the label of an image is: one class, several, numbers, or a class of each of its pixels.
    predicted: what a prediction has: a name, and its probability or another number.
    facts: the keywords of its implementation that a run computes: numbers, one number for each output, or a text.
    flags: those of `train predict` and `train eval` that are not for every task.
    sample: the word for one. presenter: the `tasks.presenters.Presenter` of
    its predictions. speeds: the unit of `speed`, short and in full.
    """

    metrics: ClassVar[tuple[Metric, ...]]
    weighs_classes: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]]
    axes: ClassVar[int]
    unit: ClassVar[str]
    view_title: ClassVar[str]
    view_keys: ClassVar[tuple[str, str]]
    labelled: ClassVar[Literal["class", "classes", "numbers", "pixels"]] = "class"
    predicted: ClassVar[tuple[str, str]] = ("class", "probability")
    facts: ClassVar[tuple[str, ...]] = ()
    flags: ClassVar[tuple[str, ...]] = ("list", "top", "csv", "views", "worst_first")
    sample: ClassVar[str] = "image"
    presenter: ClassVar[Any] = None
    speeds: ClassVar[tuple[str, str]] = ("im/s", "images/s")

    name: str

    @abstractmethod
    def full_size(self, config: RunConfig) -> Size:
        """Return the size of samples that no algorithm changes: height and width in pixels, or the length."""

    @abstractmethod
    def evaluation_size(self, config: RunConfig) -> Size:
        """Return the size of the samples of an evaluation, as the network gets them."""

    def loaded_evaluation_size(self, config: RunConfig) -> Size:
        """Return the size of the samples of an evaluation as loaded."""
        return self.evaluation_size(config)

    def refuse_flags(self, values: Mapping[str, Any], run: str) -> None:
        """Raise UserError for each flag of a command line that is for other tasks than that of a run."""
        owners: dict[str, list[str]] = {}
        for name, kind in TASKS.declarations().items():
            for flag in {*kind.flags} - {*self.flags}:
                owners.setdefault(flag, []).append(name)
        wrong = [flag for flag in owners if values.get(flag) not in (None, False)]
        if wrong:
            is_for = (f"{flag_of(one)} is for task={' or '.join(owners[one])}" for one in sorted(wrong))
            raise UserError(*(f"{text}, and {run} has task={self.name}; remove it" for text in is_for))

    def check_views(self, config: RunConfig) -> None:
        """Raise UserError if `image.eval_views` of the task are all equal."""
        size, loaded = min(self.evaluation_size(config)), min(self.loaded_evaluation_size(config))
        if (views := config.image.eval_views) != "centre" and size >= loaded:
            larger = "" if self.axes == 1 or self.labelled == "pixels" else ", or a larger image.eval_resize"
            message = f"cuts {size} {self.unit} out of {loaded}, so all views are equal; set centre{larger}"
            raise UserError(Problem(message, "image.eval_views", views))

    @abstractmethod
    def decoder(self, config: RunConfig, change_image: Callable[..., Any] | None) -> Any:
        """Return the `data.records.Decoder` of training records; change_image: that of algorithms, if any."""

    @abstractmethod
    def evaluation_decoder(self, config: RunConfig) -> Any:
        """Return the `data.records.Decoder` of an evaluation."""

    @abstractmethod
    def records(self, folder: Any, decoder: Any) -> Any:
        """Return the `data.records.Records` of the `data.index.Images` of a split, which have what the task `needs`."""

    def set_metrics(self, own: Mapping[str, OwnMetric], primary: str | None) -> None:
        """Add the user's metrics to those of the task, and put the primary one first.

        Raises UserError if two have the same name, or none has that of the primary one.
        """
        if taken := own.keys() & {metric.name for metric in type(self).metrics}:
            message = f"is a metric of task={self.name} already; rename yours"
            raise UserError(*(Problem(message, f"metrics.{name}", own[name].target) for name in sorted(taken)))
        added = (Metric(name, name, values.better, is_share=False) for name, values in own.items())
        object.__setattr__(self, "metrics", (*type(self).metrics, *added))
        if primary is not None:
            first = self.metric(primary, "metric", primary)._replace(in_line="always")
            object.__setattr__(self, "metrics", (first, *(one for one in self.metrics if one.name != primary)))

    @property
    def primary(self) -> Metric:
        """Return the metric that decides the best checkpoint and compares runs."""
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

    def sizes(self, config: RunConfig) -> str:
        """Return the sizes of the samples of an evaluation, in text."""
        return f"{size_text(self.evaluation_size(config))} {self.unit}"

    def speed(self, samples: float) -> float:
        """Return samples a second as what is counted in a second."""
        return samples

    def counted(self, outputs: int | None) -> str:
        """Return a number of outputs with their name, such as `10 classes`."""
        one, several = ("number", "numbers") if self.labelled == "numbers" else ("class", "classes")
        return f"{outputs:,} {one if outputs == 1 else several}"

    def scores(self, loss: LossConfig) -> Scores:
        """Return the function from outputs to class probabilities, or `numbers`; None if an export has none."""
        return None

    def goal(self, target: str) -> Goal:
        """Parse a target, whose metric is the primary one if it has none.

        Raises UserError if the task has no such metric, or the value is out of range.
        """
        name, value = target_parts(target)
        metric = self.primary if name is None else self.metric(name, "target", target, f":{value:g}")
        if metric.is_share and not 0 < value <= 1:
            message = f"{metric.name} must be above 0 and at most 1, such as {metric.name}:0.759"
            raise UserError(Problem(message, "target", target))
        return Goal(metric, value)

    def patience(self, stop: Stop) -> Patience | None:
        """Return the rule of early stopping; None without one.

        Raises UserError if the task has no such metric.
        """
        metric = self.primary if stop.metric is None else self.metric(stop.metric, "stop.metric", stop.metric)
        return None if stop.patience is None else Patience(metric, stop.patience, stop.min_delta)

    def ended_by(self, config: RunConfig, history: Sequence[Mapping[str, float | None]]) -> str | None:
        """Return the key that ends a run after these evaluations, `target` or `stop.patience`; None if none does."""
        if config.target is not None and any(map(self.goal(config.target).is_reached, history)):
            return "target"
        patience = self.patience(config.stop)
        return "stop.patience" if patience is not None and patience.is_over(history) else None

    def metric(self, name: str, key: str, value: str, end: str = "") -> Metric:
        """Return the metric of a name, which a value of the config has; `end` follows it there.

        Raises UserError if the task has no such metric that compares.
        """
        metrics = {metric.name: metric for metric in self.metrics if metric.compares}
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
class OwnMetric(Called):
    """Calls a function of outputs and targets that returns a value of each sample, or a metric of torchmetrics."""

    libraries = ("torchmetrics.aggregation", "torchmetrics.classification", "torchmetrics.regression")
    leading = 2

    better: Literal["higher", "lower"]

    @classmethod
    def unset(cls, name: str) -> dict[str, Any]:
        return {"better": "higher"}


def metrics_of_tasks() -> dict[str, tuple[Metric, list[str]]]:
    """Return the metrics of all tasks that compare, by name, with the names of their tasks."""
    metrics: dict[str, tuple[Metric, list[str]]] = {}
    for task, declared in TASKS.declarations().items():
        for metric in declared.metrics:
            if metric.compares:
                metrics.setdefault(metric.name, (metric, []))[1].append(task)
    return metrics


TASKS = Group("task", TaskConfig, "tasks")
