"""A trained model: the network of a run or an export, its model card, its predictions and its evaluation."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from launcher.compute.probe import rank_cores
from launcher.config.fields import size_value
from launcher.config.formats import FORMAT
from launcher.config.resolved import fingerprint, portable, read, with_views, written_fingerprint
from launcher.config.schema import RunConfig, Views
from launcher.counts import count_of
from launcher.data.images import UNREADABLE, CentreCrops, ReadableImages
from launcher.data.index import Images, Piece, Texts
from launcher.data.inspection import match_images
from launcher.data.loaders.base import MOST_PROCESSES, source_of
from launcher.data.loading import EvaluationLoader, build_evaluation, build_loaders
from launcher.data.sampling import Shard
from launcher.data.unreadable import read_skipped, reason
from launcher.data.worker_processes import WorkerProcesses
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank, use_device
from launcher.records.run_folder import RunFolder
from launcher.tasks import Details, Task, build_task
from launcher.tasks.predicted_masks import largest_shares, predicted_file, predicted_mask
from launcher.tasks.presenters import PredictedImage
from launcher.training import checkpoint
from launcher.training.evaluation import Evaluation, evaluate, outside_steps
from launcher.training.networks import run_network
from launcher.training.precision import Precision, choose_precision
from launcher.training.trainer import set_backend
from launcher.version import __version__
from launcher.weights.card import CARD, WEIGHTS, read_card
from launcher.weights.evaluated_images import EvaluatedImage, ImageRows
from launcher.weights.export_files import IN_UNIT, ONE_VIEW, network_card, read_weights

_BATCH = 64
_PREFETCH = 2
# note: the main process reads this many before worker processes have started
_FEW = 256


@dataclass(frozen=True)
class TrainedModel:
    """A network in evaluation mode on its device, and the model card that describes its input and output."""

    network: nn.Module
    card: dict[str, Any]
    precision: Precision
    device: torch.device
    task: Task

    @property
    def _predicts_masks(self) -> bool:
        return "mask" in self.task.needs

    @torch.inference_mode()
    def outputs(self, pixels: Tensor) -> Tensor:
        """Return the network's outputs for pixels [B, C, H, W] on the device, float32."""
        with self.precision.autocast():
            return self.task.forward(self.network, self.task.prepare(outside_steps(pixels)).inputs)

    def predictions(self, pixels: Tensor, top: int) -> list[list[tuple[str, float]]]:
        """Return the task's predictions of images [B, C, H, W]: names with probabilities or numbers."""
        return self.task.predictions(self.outputs(pixels), self.card["classes"], top)

    def predict(self, images: Sequence[np.ndarray], top: int = 5) -> list[list[tuple[str, float]]]:
        """Return the predictions of images of any size, prepared as those of files: names, and their numbers.

        Those of a segmentation are the classes with most pixels of the whole image, and their share of all.

        images: arrays [H, W, C] of the channels and type of the training images, uint8 [H, W, 3] of RGB for most.
        top: the most classes of each image.

        Raises UserError if one has other channels or another type, or the model predicts text.
        """
        if self.task.axes == 1:
            raise UserError("a language model has no images to predict; launcher.weights.generate continues a text")
        decoder, predicted = CentreCrops(self.card["input"]), []
        if self._predicts_masks:
            masks = (predicted_mask(self, decoder.checked(image)) for image in images)
            return [largest_shares(mask, self.card["classes"], top) for mask in masks]
        for start in range(0, len(images), _BATCH):
            arrays = [decoder.of_array(image) for image in images[start : start + _BATCH]]
            pixels = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
            predicted += self.predictions(pixels.to(self.device), top)
        return predicted

    def predict_files(self, files: Sequence[str], top: int) -> Iterator[PredictedImage]:
        """Yield the predictions of each file, at most `top` classes of one-class tasks, in the order of the files."""
        if self._predicts_masks:
            yield from (predicted_file(self, file, top) for file in files)
            return
        folder = Images("val", "", [], Texts(files), np.zeros(len(files), np.int64), paths=Texts(files))
        images = ReadableImages(folder, decoder := CentreCrops(self.card["input"]))
        workers = min(MOST_PROCESSES, rank_cores(1)) if len(files) > _FEW else 0
        shard = Shard(0, 1, workers, _PREFETCH, self.device)
        loader = EvaluationLoader(WorkerProcesses(images, shard), shard, _BATCH, min(decoder.size))
        try:
            for pixels, labels, indices in loader:
                likeliest = self.predictions(pixels.to(self.device), top)
                for index, label, classes in zip(indices.tolist(), labels.tolist(), likeliest, strict=True):
                    file = files[index]
                    if label == UNREADABLE:
                        yield PredictedImage(
                            file, [], reason(Piece(file, file), decoder.pixel_type) or "it has changed since"
                        )
                    else:
                        yield PredictedImage(file, classes)
        finally:
            loader.close()


def trained_model(plan: Plan, state: dict[str, Any], kind: str) -> TrainedModel:
    """Build a model from a checkpoint's evaluated weights, in the run's precision, on `cpu` or `cuda`.

    Raises UserError if the checkpoint belongs to another run, and MachineError if the GPU cannot be used.
    """
    config, device = plan.config, use_device(kind, 0)
    set_backend(config)
    with checkpoint.matching_run(state, config):
        network = run_network(plan, state["weights"])
    precision = choose_precision(config, device)
    task = build_task(config, precision.dtype, state.get("task"))
    return TrainedModel(network.eval().to(device), model_card(plan, state, None), precision, device, task)


def model_card(plan: Plan, state: dict[str, Any], classes: list[str] | None) -> dict[str, Any]:
    """Describe a checkpoint's network; class names come from the checkpoint, else `classes`, else they are numbers.

    A language model has none.
    """
    config, dataset = plan.config, plan.config.dataset
    of_text = "tokens" in config.task.needs
    facts = state.get("task", {})
    notes = {ONE_VIEW: config.image.eval_flip_average or config.image.eval_views != "centre", IN_UNIT: "scale" in facts}
    return {
        **network_card(config),
        "classes": state.get("classes") or classes or ([] if of_text else [*map(str, range(dataset.classes or 0))]),
        "input": build_task(config, facts=state.get("task")).card_input(),
        "flip_average": config.image.eval_flip_average,
        "views": {"kind": config.image.eval_views, "size": size_value(plan.evaluation_size)},
        "note": " ".join(note for note, holds in notes.items() if holds) or None,
        "scores": config.task.scores(config.loss),
        "task": facts,
        "recipe": config.recipe,
        "dataset": dataset.name,
        "loader": config.dataloader.name,
        "step": state["step"],
        "class_weights": state.get("class_weights"),
        "averaged": config.algorithms.acting("evaluation_weights"),
        **dict.fromkeys(metric.name for metric in config.task.metrics),
        "images": None,
        "precision": None,
        "config": portable(config),
        "format": FORMAT,
        "version": __version__,
    }


def load_checkpoint(folder: RunFolder, *, best: bool) -> dict[str, Any]:
    """Load the newest valid checkpoint, or that of the best evaluation.

    Raises UserError if there is none, or another program wrote it.
    """
    state = checkpoint.load(folder.best) if best else checkpoint.newest_valid(folder.checkpoints)
    if state is None:
        raise UserError(f"{folder.path} has no valid checkpoint yet; type train resume {quote(str(folder.path))}")
    if not {"step", "weights"} <= state.keys():
        raise UserError(f"{folder.path}: the checkpoint has no weights or no step; start a new run")
    # note: keys of another version, which its config is read without
    if state.get("config") == written_fingerprint(folder.config):
        return {**state, "config": fingerprint(read(folder.config))}
    return state


def exported_model(folder: Path, kind: str, views: Views | None = None) -> TrainedModel:
    """Build a model from an export, which computes the same as from its run, unless it averages other views.

    Raises UserError if a file is missing, damaged, or belongs to another network. Raises MachineError if the GPU cannot
    be used.
    """
    config, classes, facts = read_card(folder / CARD)
    config = with_views(config, views)
    try:
        weights, _, changes = read_weights(folder / WEIGHTS)
    except ValueError as error:
        raise UserError(f"{folder / WEIGHTS} {error}; export the run again") from None
    state = {"weights": weights, "classes": classes, "step": 0, "config": fingerprint(config), "task": facts}
    model = trained_model(plan_for(config, 1), state, kind)
    if changes != model.card["surgery"]:
        raise UserError(f"{folder / WEIGHTS} does not belong to the network in {CARD}; export the run again")
    return model


@dataclass(frozen=True)
class CheckpointResult:
    """A checkpoint's step, result and details by class or number; `notes` list classes that were not evaluated.

    `gallery` is the markup of some of the images, and `images` are all, if requested.
    """

    step: int
    result: Evaluation
    details: Details
    notes: list[str]
    gallery: str
    images: list[EvaluatedImage]


def evaluate_run(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool = False, other: str | None = None,
    with_gallery: bool = False, details_of: Callable[[TrainedModel], Details] | None = None, top: int | None = None,
    only_present: bool = False,
) -> CheckpointResult:  # fmt: skip
    """Evaluate the newest checkpoint, or the best, on the validation set or `other` images, on `cpu` or `cuda`.

    config: the run's, with the changes that an evaluation allows. details_of: instead of those of the task. top: the
    most classes of each image, to keep them. only_present: predict only classes that one of the images has.

    Raises UserError if the run has no valid checkpoint, its data are missing, or the other images none of its classes.
    Raises MachineError if the GPU cannot be used.
    """
    state, plan = load_checkpoint(folder, best=best), plan_for(config, 1)
    model = trained_model(plan, state, device)
    with _images_of(plan, state, folder, other, model.device) as (loader, notes, unreadable):
        if only_present:
            model, note = _among(model, config, loader.reader.labels)
            notes = [*notes, note]
        names = model.card["classes"]
        details = details_of(model) if details_of else model.task.details(names, with_images=with_gallery)
        images = ImageRows(model.task, names, top) if top is not None else None
        observers = [details.add, *([images.add] if images else [])]
        autocast, device_of = model.precision.autocast, model.device
        result = evaluate(model.network, model.task, loader, autocast, device_of, observers=observers)
        sections = details.sections(loader) if with_gallery else ""
        rows = images.of(loader.reader, unreadable) if images else []
    assert result is not None
    return CheckpointResult(state["step"], result, details, notes, sections, rows)


def _among(model: TrainedModel, config: RunConfig, labels: np.ndarray) -> tuple[TrainedModel, str]:
    """Return a model that predicts only the classes of the labels, int64 [N], and a note."""
    classes = len(model.card["classes"])
    absent = np.setdiff1d(np.arange(classes), labels)
    facts = {**model.card["task"], "absent": absent.tolist()}
    task = build_task(config, model.precision.dtype, facts)
    note = f"predictions are among the {classes - len(absent):,} of {count_of(classes, 'class')} that the images have"
    return replace(model, task=task), note


@contextmanager
def _images_of(
    plan: Plan, state: dict[str, Any], folder: RunFolder, other: str | None, device: torch.device
) -> Iterator[tuple[EvaluationLoader, list[str], Mapping[str, str]]]:
    """Yield the run's validation images or others, notes on their classes, and unreadable images with reasons."""
    if other is None:
        skipped = read_skipped(folder.skipped, plan.config.dataset)
        classes = state.get("classes")
        with closing(build_loaders(plan, single_rank(device), skipped=skipped, classes=classes)) as loaders:
            yield loaders.evaluate, [], skipped
        return
    if records := source_of(plan.config).other(other, plan, state.get("task", {})):
        with closing(build_evaluation(plan, records, single_rank(device))) as loader:
            yield loader, [], {}
        return
    if not (classes := state.get("classes")):
        message = "the checkpoint has no class names to match the labels by; remove dataset.path"
        raise UserError(Problem(message, "dataset.path", other))
    images, notes, unreadable = match_images(other, plan.config, classes)
    with closing(build_evaluation(plan, images, single_rank(device))) as loader:
        yield loader, notes, unreadable
