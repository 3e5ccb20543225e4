"""Images of folders, archives, tables and buckets as a run reads them; imports no torch before it opens them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.config.schema import Dataset, RunConfig
from launcher.counts import count_of
from launcher.data.index import Images
from launcher.data.inspection import check_counts, is_here
from launcher.data.listing import is_folder
from launcher.data.loaders.base import Found, Opening, Source
from launcher.data.masks.pairs import check_without_masks
from launcher.data.sources.find import find_splits, labelled_as, read_splits, with_classes
from launcher.data.sources.layout import VAL, is_remote, unread_folders
from launcher.data.sources.path_tables import tables_in
from launcher.data.sources.shards import archives_in
from launcher.data.sources.source import Files
from launcher.data.workers import Report
from launcher.errors import Problem, UserError, first_few
from launcher.rank.signs import STOP

if TYPE_CHECKING:
    from launcher.data.images import Reader


class ImageFiles(Source):
    """Images that worker processes decode."""

    def list(self, config: RunConfig, skipped: Collection[str] | None) -> Sequence[Images]:
        with STOP.waiting():
            return read_splits(config, skipped)

    def find(self, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Found | None:
        dataset = config.dataset
        if dataset.is_built_in:
            return None
        if dataset.path is None or not (is_remote(dataset.path) or is_here(dataset.path)):
            raise UserError(_missing_folder(dataset))
        check_without_masks(dataset.path)
        both, bad = find_splits(dataset, config.seed, config.task.labelled, skipped, report)
        train, val = labelled_as(config, both)
        notes = _layout(Path(dataset.path), dataset, train, val) if train.are_class_folders else []
        return Found((train, val), dataset.path, bad=bad, notes=notes)

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.worker_processes import open_processes  # note: torch

        train, val = _labelled(opening)
        buffer = opening.plan.config.dataloader.shuffle_buffer  # type: ignore[attr-defined]
        return open_processes(opening, train, val, buffer)


class EvaluatedImages(ImageFiles):
    """The same, but those for training are prepared as for an evaluation, too."""

    def open(self, opening: Opening) -> tuple[Reader, Reader]:
        from launcher.data.worker_processes import WorkerProcesses  # note: torch

        config, (train, val) = opening.plan.config, _labelled(opening)
        task, decoder = config.task, config.task.evaluation_decoder(config)
        reader = WorkerProcesses(task.records(train, decoder), opening.shard)
        return reader, WorkerProcesses(task.records(val, decoder), opening.shard)


def _labelled(opening: Opening) -> list[Images]:
    """Return the images of both splits with the labels of the run; raises UserError if their counts differ from it."""
    plan = opening.plan
    train, val = (with_classes(one, opening.classes, plan.config) for one in opening.images)
    check_counts(plan, len(train.classes), len(train), train.root)
    return [train, val]


def _layout(path: Path, dataset: Dataset, train: Images, val: Images) -> list[str]:
    """Return notes on the folders that are read if a user may expect others."""
    used = "" if dataset.is_divided else Path(val.root).name
    notes = [f"no {path / 'val'}: validating on the images of {val.root}"] if used not in ("", "val") else []
    unused = [folder for name in VAL if name != used and is_folder(folder := path / name)]
    if unused and dataset.test_path is None:
        message = f"ignoring {first_few([*map(str, unused)])}; dataset.test_path={unused[-1]} evaluates the finished "
        notes.append(f"{message}run on it")
    if others := unread_folders(Files(str(path)).tree(), train.place.rstrip("/")):
        notes.append(f"ignoring {first_few([str(path / one) for one in others])}, which lie beside the splits")
    if beside := [*archives_in(Files(str(path)))[0], *tables_in(str(path))]:
        notes.append(f"ignoring {first_few(beside)}, since class folders lie beside")
    deep = [f"{split.place}{file}" for split in (train, val) for file in split.names if file.count("/") > 1]
    if deep and dataset.class_level == "first":
        below = f"{count_of(len(deep), 'image')} in folders below their class folder, such as {deep[0]}"
        notes.append(f"{below}; dataset.class_level=last, or path, makes classes of these folders")
    return notes


def _missing_folder(dataset: Dataset) -> Problem:
    what = "not a folder" if dataset.path else "missing"
    message = (
        f"{what}; set dataset.path=/data/{dataset.name}, a folder that holds train/CLASS/*.jpg and "
        f"val/CLASS/*.jpg (or use dataset=shapes, which is built in)"
    )
    return Problem(message, "dataset.path", dataset.path)
