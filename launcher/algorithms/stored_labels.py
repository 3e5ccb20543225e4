"""Stored labels (Shen and Xing 2022, FKD; Shen 2023, FerKD): a teacher's probabilities of crops, from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic.dataclasses import dataclass

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.algorithms.label_smoothing import smooth
from launcher.algorithms.mixup import MixingConfig
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT, AnyPath, Probability
from launcher.counts import count_of
from launcher.data.batch import Batch
from launcher.data.stored_crops import Described, LabelsFile, crop_values, open_labels
from launcher.errors import Problem, UserError
from launcher.later import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, config=STRICT)
class StoredLabelsConfig(
    AlgorithmConfig,
    change_batch=35,
    excludes={
        "distillation": "both replace the targets by those of a teacher; use one",
        "label_smoothing": "the probabilities are smooth already",
    },
    acts_on=("image", "label"),
):
    """The file of `train relabel`: the loader takes its crops and flips, and targets are its probabilities.

    Where the likeliest class has less than `true_class_below`, the true class is the target, with `smoothing` (FerKD).
    """

    needs_rgb = "teachers were trained on such images"

    path: AnyPath | None
    true_class_below: Probability
    smoothing: Probability

    @property
    def crops_file(self) -> str | None:
        return self.path

    def problems(self, plan: RunPlan) -> Iterator[Problem]:
        config, problem = plan.config, lambda message: Problem(message, "path", self.path)
        if config.task.labelled != "class":
            yield problem(f"needs one class per image, which task={config.task.name} has not; turn {self.name} off")
        if not config.dataloader.reads:
            yield problem(f"dataloader={config.dataloader.name} reads no images; set dataloader=torchvision")
        for name, values in config.algorithms.items():
            if values.place("change_image") is not None or (values.place("change_batch") or 0) < 0:
                yield problem(f"the teacher saw images without {name}; set algorithms.{name}=off")
            if isinstance(values, MixingConfig) and values.smoothed == "first":
                yield problem(f"has probabilities for both images; set algorithms.{name}.smoothed=both")
        if self.path is None:
            yield problem("write the file by train relabel TEACHER, and set it here")
            return
        try:
            described = LabelsFile(self.path).described
        except UserError as error:
            yield from (problem(one.message) for one in error.problems)
            return
        yield from (problem(message) for message in _differences(described, plan))

    def notes(self, plan: RunPlan) -> Iterator[str]:
        if self.path is not None:
            of = LabelsFile(self.path).described
            yield f"{self.path} has {count_of(of.crops, 'crop')} an image with labels by {of.teacher}; no teacher runs"


def _differences(described: Described, plan: RunPlan) -> Iterator[str]:
    """Yield what differs between the values of a run and those of a file."""
    dataset = plan.config.dataset
    for key, ours in crop_values(plan.config).items():
        if (theirs := described.image[key]) != ours:
            value = f"[{','.join(map(str, theirs))}]" if isinstance(theirs, list) else str(theirs).lower()
            yield f"has crops of {key}={value}, the run of {ours}; set {key}={value}"
    for key, has, ours in (
        ("classes", len(described.classes), dataset.classes),
        ("train_samples", described.samples, dataset.train_samples),
    ):
        if has != ours:
            yield f"has dataset.{key}={has}, the run {ours}; write a file of these images by train relabel"


def marginal_smoothing(classes: Tensor, probabilities: Tensor, count: int) -> Tensor:
    """Return the probabilities of `count` classes [B, count]: those of the likeliest, and equal ones of all others.

    classes: int64 [B, top]. probabilities: float32 [B, top]; the other classes share what these leave of 1.
    """
    others = max(1, count - classes.shape[1])
    rest = (1 - probabilities.sum(1, keepdim=True)).clamp_min(0) / others
    return torch.scatter(rest.expand(-1, count), 1, classes, probabilities)


class StoredLabels(Algorithm[StoredLabelsConfig]):
    """Replaces the targets by the stored ones of the crops that the loader took; algorithms that mix follow."""

    @property
    def _file(self) -> LabelsFile:
        assert self.values.path is not None
        return open_labels(self.values.path)

    def change_batch(self, batch: Batch, size: Size) -> Transform | None:
        moment = batch.moment
        return Transform(self._file.labels(moment.seed, moment.epoch, batch.indices), self._replace)

    def state_dict(self) -> dict[str, Any]:
        return {"file": self._file.described.line().decode()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises UserError if the run started with another file."""
        # note: a checkpoint of an older version has no line
        if state.get("file", ours := self.state_dict()["file"]) != ours:
            theirs = json.loads(state["file"])["teacher"]
            message = f"is not the run's first file, of the teacher {theirs}; put that back, or start a new run"
            raise UserError(Problem(message, "algorithms.stored_labels.path", self.values.path))

    def _replace(self, batch: Batch, classes: Tensor, probabilities: Tensor) -> Batch:
        count, values = self.context.classes, self.values
        targets = marginal_smoothing(classes, probabilities, count)
        if values.true_class_below > 0:
            unsure = probabilities.amax(1, keepdim=True) < values.true_class_below
            targets = torch.where(unsure, smooth(batch.targets, values.smoothing, count), targets)
        return replace(batch, targets=targets)
