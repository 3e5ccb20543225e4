"""Use the launcher from Python: what the command does, for notebooks and other programs.

The words are those of the command line. Values that cannot work raise `UserError`, whose text names the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.cli import auto
from launcher.cli.listed_runs import ListedRun
from launcher.cli.listed_runs import list_runs as listed
from launcher.cli.predict import load_model
from launcher.config.compose import Composed
from launcher.config.compose import compose as composed
from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.inspection import Inspection
from launcher.data.listing import image_files
from launcher.data.pixel_types import PixelType
from launcher.errors import DONE, FAILED, UserError
from launcher.launch.in_process import InThisProcess, environment
from launcher.launch.prepare import prepare_plan
from launcher.plan.plan import Plan
from launcher.records.metrics import Row, read_rows, without_void
from launcher.records.run_folder import RunFolder, existing
from launcher.weights.card import find_trained

if TYPE_CHECKING:
    from launcher.launch.start import Ended
    from launcher.tasks.presenters import PredictedImage
    from launcher.weights.trained_model import TrainedModel

# Keeps modules of the working directory from hiding those of the ranks.
_SAFE = {"PYTHONSAFEPATH": "1"}


@dataclass(frozen=True)
class Run:
    """A run folder; `finished` is false if the run was stopped, and can be resumed."""

    path: Path
    finished: bool

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return read(RunFolder(self.path).config)

    def records(self, kind: str = "eval") -> list[Row]:
        """Return the records of a kind, such as `eval` or `train`, in the order of their steps; for a data frame."""
        return [row for row in without_void([*read_rows(RunFolder(self.path).metrics)]) if row["kind"] == kind]


def compose(*words: str) -> RunConfig:
    """Compose and check the config of a run, as `train show` does.

    Raises UserError with every wrong word.
    """
    return _composed("show", words)[0].config


def plan_run(*words: str) -> Plan:
    """Return what a run on this machine will do: its steps, learning rates and image sizes, as `train plan` does.

    Raises UserError if a value cannot work.
    """
    return prepare_plan(*_composed("plan", words)).plan


def train(*words: str, in_this_process: bool = False) -> Run:
    """Train a new run, as `train` does: one process per GPU. It must be called in the main thread.

    in_this_process: train the only process of the run here, where errors have their traceback and a debugger stops;
    its settings of torch stay set.

    Raises UserError if a value cannot work, and RuntimeError if training failed.
    """
    from launcher.launch.start import start
    from launcher.prediction.start import STARTS

    of_run, seen = _composed("run", words)
    with environment(_SAFE):
        return _run(start(of_run, STARTS, InThisProcess if in_this_process else None, seen))


def resume(path: str | Path, *words: str, in_this_process: bool = False) -> Run:
    """Resume a run from its newest checkpoint, as `train resume` does; words such as `epochs=20` change its config.

    Raises UserError if the folder is no run or a word would change completed steps; RuntimeError if training failed.
    """
    from launcher.launch.start import resume as start_again

    with environment(_SAFE):
        return _run(start_again(existing(str(path)), words, launcher=InThisProcess if in_this_process else None))


def list_runs(folder: str | Path = "runs") -> list[ListedRun]:
    """Return the runs in a folder, the last written one last, as `train ls runs` does; for a data frame."""
    return listed(Path(folder))


def load(path: str | Path, *, best: bool = False) -> TrainedModel:
    """Load the trained network of a run or an export: `.network` in evaluation mode, on the GPU if there is one.

    Raises UserError if there is no checkpoint.
    """
    return load_model(*find_trained(str(path)), best=best)


def predict(
    path: str | Path, images: Sequence[str | Path], *, top: int = 5, best: bool = False
) -> list[PredictedImage]:
    """Return the predictions of image files, or of folders of them, by a run or an export, as `train predict` does.

    Raises UserError if there is no checkpoint or no image.
    """
    model = load(path, best=best)
    files, _ = image_files([*map(str, images)], PixelType.of(model.task.config.dataset).extensions)
    if not files:
        raise UserError("no images; pass files or folders")
    return [*model.predict_files(files, top)]


def _composed(verb: str, words: Sequence[str]) -> tuple[Composed, Inspection | None]:
    chosen = auto.with_recipe(verb, [*words])
    return chosen.composed or composed(chosen.words), chosen.seen


def _run(ended: Ended) -> Run:
    if ended.code == FAILED:
        raise RuntimeError(f"training failed; see {ended.folder.logs}")
    return Run(ended.folder.path, ended.code == DONE)


__all__ = ["ListedRun", "Plan", "Run", "RunConfig", "UserError", "compose", "list_runs", "load", "plan_run",
           "predict", "resume", "train"]  # fmt: skip
