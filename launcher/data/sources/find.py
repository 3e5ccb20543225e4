"""Find the images of a data set's path: class folders, archives, tables, or ImageNet's files; imports no torch."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher.config.schema import Columns, Dataset, RunConfig
from launcher.data.classes import read_labels
from launcher.data.folder import (
    FFCV,
    VAL,
    Folder,
    divided,
    is_no_folder,
    is_remote,
    problem,
    same_classes,
    scan,
    scan_evaluation,
    scan_undivided,
    sizes,
    split_folder,
    without,
)
from launcher.data.listing import in_class, is_file, is_folder
from launcher.data.shapes import ensure_folder
from launcher.data.sources.formats import NO_COLUMNS
from launcher.data.sources.path_tables import TABLES, table_of, table_source
from launcher.data.sources.pieces import Remote
from launcher.data.sources.shards import FOLDERS, FORMATS, archives_in, packed_source, split_of
from launcher.data.sources.source import Files, below, labelled
from launcher.data.sources.tar import ARCHIVES, imagenet_source
from launcher.data.unreadable import unreadable
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError


def read_splits(config: RunConfig, skipped: Collection[str] = (), report: Report = quiet) -> tuple[Folder, Folder]:
    """Find the images of `splits` with the labels of the task, int64 [N] or rows [N, K], and the names of these.

    Raises UserError also if a label is none of the task.
    """
    by_class = config.task.labelled == "class"
    train, val = splits(config.dataset, config.seed, skipped, report, by_class=by_class)
    names, labels = read_labels(config, train.classes)
    return replace(train, classes=names, labels=labels[train.labels]), replace(
        val, classes=names, labels=labels[val.labels]
    )


def splits(
    dataset: Dataset,
    seed: int,
    skipped: Collection[str] = (),
    report: Report = quiet,
    *,
    by_class: bool = True,
    is_prepared: bool = False,
) -> tuple[Folder, Folder]:
    """Find the training and validation images of a data set, without those `skipped`; a class is the text of a label.

    With `dataset.val_split` the split is drawn from each class, or from all images.

    Raises UserError if images are missing or cannot be listed, or only `train prepare` reads them (`is_prepared`).
    """
    path, fraction = images_path(dataset), dataset.val_split
    if fraction is not None:
        in_folders = is_in_class_folders(path)
        whole = scan_undivided(Path(path), fraction) if in_folders else open_source(path, "", report, dataset.columns)
        return divided(without(whole, skipped), fraction, seed, by_class=by_class)
    both = (open_source(path, one, report, dataset.columns, is_prepared=is_prepared) for one in ("train", "val"))
    train, val = (without(replace(one, place=one.place or f"{one.split}/"), skipped) for one in both)
    return same_classes(train, val)


def images_path(dataset: Dataset) -> str:
    """Return the path of a data set's images; draws the built-in ones on first use.

    Raises UserError if it is not set.
    """
    if dataset.kind != "folder":
        return str(ensure_folder(dataset))
    if dataset.path is None:
        message = "missing; set a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, a folder of tar files, or a bucket"
        raise UserError(Problem(message, "dataset.path", None))
    return dataset.path


def evaluation_images(path: str, columns: Columns, report: Report = quiet) -> Folder:
    """Find the validation images of a path; those of class folders or of a file without such a split are all.

    Raises UserError if no images exist, or they cannot be listed.
    """
    if is_in_class_folders(path):
        return scan_evaluation(Path(path))
    try:
        return open_source(path, "val", report, columns, is_prepared=False)
    except UserError:
        if not is_file(Path(path)):
            raise
        return open_source(path, "", report, columns, is_prepared=False)


def find_skipped(dataset: Dataset, seed: int, report: Report) -> dict[str, str]:
    """Return the images that `dataset.skip_bad` skips, with reasons; none if it is off."""
    if not dataset.skip_bad or dataset.kind != "folder":
        return {}
    return unreadable(splits(dataset, seed, report=report), report)


def is_in_class_folders(path: str) -> bool:
    """Return whether a path is, or should be, class folders on this machine, not archives or tables in a folder."""
    if is_no_folder(path) or not is_folder(Path(path)):
        return not (is_remote(path) or Path(path).suffix in (*FORMATS, *TABLES))
    if any(map(is_folder, split_folder(Path(path), "train").glob("[!.]*"))):
        return True
    archives = archives_in(Files(path), path)
    if not any(split_of(file.removeprefix(path)) for file in archives):
        others = (entry.name for entry in Path(path).glob("[!.]*") if is_folder(entry))
        archives = [] if {*others}.difference((*FOLDERS, FFCV)) else archives
    return not archives and table_of(path, "train") is None


def open_source(
    path: str, split: str, report: Report, columns: Columns = NO_COLUMNS, *, is_prepared: bool = True
) -> Folder:
    """Find the images of a split, or all if it is empty.

    Raises UserError if no images exist, or they cannot be listed; if they are not `is_prepared`, also for class folders
    of a web server.
    """
    files = Files(path)
    if is_in_class_folders(path):
        return scan(Path(path), split)
    if split and files.holds(below(path, ARCHIVES[split])):
        return imagenet_source(files, path, split, report)
    if not is_remote(path) and (source := table_source(path, split, columns)) is not None:
        return source
    if (source := packed_source(files, path, split, report, columns)) is not None:
        return source
    if not split:
        message = "has no archives (.tar, .zip, .parquet), and class folders of a bucket need a val/ folder; add one"
        raise problem(path, f"{message}, and remove dataset.val_split")
    source = _remote_folders(files, split, report)
    if not is_prepared and None in sizes(source):
        message = "lists files without their sizes, as web servers do; run train prepare dataloader.folder=FOLDER, then"
        raise problem(path, f"{message} dataloader=ffcv dataloader.folder=FOLDER")
    return source


def _remote_folders(files: Files, split: str, report: Report) -> Folder:
    """Find the images of class folders in a bucket or on a web server: URL/SPLIT/CLASS/NAME, or in folders below CLASS.

    Raises UserError if no images exist, or they cannot be listed.
    """
    path, what, reason = files.url, f"listing {split} images", ""
    report(what, 0, 1)
    system = files.system()
    for name in VAL if split == "val" else (split,):
        try:
            base = system._strip_protocol(below(path, name)).rstrip("/") + "/"
            listed = system.find(base, detail=True)
        except FileNotFoundError as error:
            # note: a bucket that does not exist is only in the text
            listed, reason = {}, f" ({error})"
        except Exception as error:
            raise files.unreachable(error) from None
        size_of = {str(file).removeprefix(base): facts.get("size") for file, facts in listed.items()}
        if images := sorted(image for file in size_of if (image := in_class(file.split("/")))):
            report(what, 1, 1)
            classes, names, labels = labelled(images)
            remote = Remote(below(path, name), np.array([size_of[name] for name in names]))
            return Folder(path, split, classes, names, labels, remote)
    raise problem(path, f"has neither {split}/CLASS/*.jpg nor archives (.tar, .zip, .parquet){reason}; set another URL")
