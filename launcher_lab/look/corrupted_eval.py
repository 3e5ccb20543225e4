"""The evaluation of a run on corrupted images: each kind at each strength."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from launcher.config.schema import RunConfig
from launcher.data.batch import Loaded
from launcher.data.loading import EvaluationLoader
from launcher.data.workers import Report
from launcher.errors import Problem, UserError
from launcher.plan.plan import plan_for
from launcher.probe import rank_cores
from launcher.records.run_folder import RunFolder
from launcher.training.evaluation import evaluate
from launcher.weights.trained_model import images_of, load_checkpoint, trained_model
from launcher_lab.look.corruptions import STRENGTHS, corrupted, kinds, published_size


@dataclass(frozen=True)
class Robustness:
    """The primary metric on the images as they are, and by kind at each strength; notes for the user."""

    step: int
    images: int
    clean: float
    values: dict[str, list[float]]
    notes: list[str]

    @property
    def means(self) -> dict[str, float]:
        """The mean over the strengths of each kind."""
        return {kind: float(np.mean(values)) for kind, values in self.values.items()}

    @property
    def mean(self) -> float:
        """The mean over all kinds and strengths."""
        return float(np.mean([*self.values.values()]))


def check_corruptible(config: RunConfig) -> None:
    """Raise UserError if images of the run's task cannot be corrupted with their labels unchanged."""
    if "image" not in config.task.needs or config.task.labelled == "pixels":
        raise UserError(f"--corruptions is for images with labels, and the run is task={config.task.name}; remove it")
    if not config.dataset.is_rgb:
        message = "--corruptions is for RGB images of 8 bits; remove it"
        raise UserError(Problem(message, "dataset.channels", config.dataset.channels))


def robustness(
    folder: RunFolder, config: RunConfig, device: str, *, best: bool, other: str | None, report: Report
) -> Robustness:
    """Evaluate the newest checkpoint, or the best, on corrupted validation images or `other` ones; raises as an eval.

    The images are corrupted as the evaluation cuts them, with random numbers of the run's seed and their places.
    """
    state = load_checkpoint(folder, best=best)
    plan = plan_for(config, 1)
    model = trained_model(plan, state, device)
    precision, metric, known = model.precision, config.task.primary, kinds()
    with (
        images_of(plan, state, folder, other, model.device) as (loader, notes, _),
        ThreadPoolExecutor(rank_cores(1)) as threads,
    ):

        def value(kind: str, strength: int) -> float:
            batches = _batches(loader, threads, kind, strength, config.seed) if strength else loader
            result = evaluate(model.network, model.task, batches, precision.autocast, model.device)
            assert result is not None
            return result.metrics[metric.name]

        clean, values, size = value("", 0), dict[str, list[float]](), loader.view
        for done, kind in enumerate(known):
            report("corruptions", done, len(known))
            values[kind] = [value(kind, strength) for strength in STRENGTHS]
        notes = [*notes, f"images of {size} px: the strengths are those published for {published_size(size)} px"]
        if "frost" not in known:
            notes.append(
                "skipping frost: the package imagecorruptions has its photographs; install it without its dependencies"
            )
        return Robustness(state["step"], loader.reader.samples, clean, values, notes)


def _batches(
    loader: EvaluationLoader, threads: ThreadPoolExecutor, kind: str, strength: int, seed: int
) -> Iterator[Loaded]:
    """Yield the batches of a loader with corrupted images, uint8 [B, 3, H, W]."""
    change = partial(corrupted, kind=kind, strength=strength, seed=seed)
    for inputs, labels, indices in loader:
        images = inputs.permute(0, 2, 3, 1).cpu().numpy()
        changed = [*threads.map(lambda one: change(one[0], index=one[1]), zip(images, indices.tolist(), strict=True))]
        yield torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2), labels, indices
