"""Find the images of a path: class folders, archives, tables, ImageNet's or CIFAR's files; imports no torch."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher.config.schema import Dataset, RunConfig
from launcher.data.builtin import ensure_folder
from launcher.data.classes import in_classes_of, read_labels
from launcher.data.folds import held_out_fold
from launcher.data.index import Images
from launcher.data.listing import is_file, is_folder
from launcher.data.pixel_types import PixelType
from launcher.data.sources.cifar import as_class_folders
from launcher.data.sources.folders import folders_source
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.imagenet import ARCHIVES, imagenet_source
from launcher.data.sources.layout import FFCV, Wanted, below, is_remote, no_split, problem
from launcher.data.sources.path_tables import TABLES, folders_in, lone_table, table_source, tables_in
from launcher.data.sources.shards import (
    COMPRESSED,
    FOLDERS,
    PACKED,
    archives_in,
    format_of,
    formats,
    packed_source,
    split_of,
)
from launcher.data.sources.source import Files
from launcher.data.split import divided, same_classes, sizes, without
from launcher.data.unreadable import unreadable
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError, first_few

_PLAIN = SourceOptions()


def read_splits(config: RunConfig, skipped: Collection[str] = (), report: Report = quiet) -> tuple[Images, Images]:
    """Find the images of `splits` with the labels of the task, int64 [N] or rows [N, K], and the names of these.

    Raises UserError also if a label is none of the task.
    """
    both = splits(config.dataset, config.seed, config.task.labelled, skipped, report)
    names, labels = read_labels(config, both[0].classes)
    train, val = (replace(one, classes=names, labels=labels[one.labels]) for one in both)
    return train, val


def with_classes(split: Images, classes: Sequence[str] | None, config: RunConfig) -> Images:
    """Return a split with the classes of a run, which may have another order; images are sorted by it, as the run did.

    Raises UserError if the run has other classes.
    """
    names, labels = in_classes_of(classes, split.classes, split.labels, config.dataset.path)
    if names == split.classes:
        return split
    relabelled = replace(split, classes=names, labels=labels)
    return relabelled.part(np.argsort(labels, kind="stable")) if config.task.labelled == "class" else relabelled


def splits(
    dataset: Dataset,
    seed: int,
    labelled: str,
    skipped: Collection[str] = (),
    report: Report = quiet,
    *,
    is_prepared: bool = False,
) -> tuple[Images, Images]:
    """Find the training and validation images of a data set, without those `skipped`; a class is the text of a label.

    With `dataset.val_split` or `dataset.folds` the split is drawn from each class if images are `labelled` by a class,
    else from all.

    Raises UserError if images are missing or cannot be listed, or only `train prepare` reads them (`is_prepared`).
    """
    path, fraction, by_class = images_path(dataset), dataset.val_split, labelled == "class"
    column = dataset.groups if isinstance(dataset.groups, str) else None
    options = SourceOptions(
        dataset.columns, dataset.links, labelled, (), column, PixelType.of(dataset).extensions, dataset.class_level
    )
    if dataset.folds is not None:
        with _keyed("dataset.folds", dataset.folds):
            whole = open_source(path, "all", report, options, is_prepared=is_prepared)
        return held_out_fold(without(whole, skipped), dataset, seed, by_class=by_class)
    if fraction is not None:
        whole = open_source(path, "all", report, options, is_prepared=is_prepared)
        train, val = divided(without(whole, skipped), fraction, seed, by_class=by_class)
        if not val.names:
            message = (
                f"{path} has one image of each class, so none is left to validate on; add images, or a val/ folder"
            )
            raise UserError(Problem(message, "dataset.val_split", fraction))
        return train, val
    both = [open_source(path, one, report, options, is_prepared=is_prepared) for one in ("train", "val")]
    train, val = (without(replace(one, place=one.place or f"{one.split}/"), skipped) for one in both)
    return same_classes(train, val)


@contextmanager
def _keyed(key: str, value: object) -> Iterator[None]:
    """State the key that divides the images in errors of `dataset.val_split`."""
    try:
        yield
    except UserError as error:
        problems = (replace(one, message=one.message.replace("dataset.val_split", key)) for one in error.problems)
        of_split = "dataset.val_split"
        raise UserError(
            *(replace(one, key=key, value=value) if one.key == of_split else one for one in problems)
        ) from None


def images_path(dataset: Dataset) -> str:
    """Return the path of a data set's images; draws the built-in ones on first use.

    Raises UserError if it is not set.
    """
    if dataset.is_built_in:
        return str(ensure_folder(dataset))
    if dataset.path is None:
        message = "missing; set a folder with train/CLASS/*.jpg and val/CLASS/*.jpg, a folder of tar files, or a bucket"
        raise UserError(Problem(message, "dataset.path", None))
    return dataset.path


def evaluation_images(path: str, config: RunConfig, classes: Sequence[str] = (), report: Report = quiet) -> Images:
    """Find the images of a path to evaluate: its validation images, or all if it is not divided.

    `classes` are those of the run.

    Raises UserError if no images exist, or they cannot be listed.
    """
    dataset = config.dataset
    extensions = PixelType.of(dataset).extensions
    options = SourceOptions(
        dataset.columns,
        dataset.links,
        config.task.labelled,
        classes,
        extensions=extensions,
        class_level=dataset.class_level,
    )
    return open_source(path, "evaluation", report, options, is_prepared=False)


def find_skipped(dataset: Dataset, seed: int, report: Report) -> dict[str, str]:
    """Return the images that `dataset.skip_bad` skips, with reasons; none if it is off."""
    if not dataset.skip_bad or dataset.is_built_in:
        return {}
    return unreadable(splits(dataset, seed, "", report=report), PixelType.of(dataset), report)


def is_in_class_folders(path: str) -> bool:
    """Return whether a path is, or should be, class folders on this machine, not archives or tables in a folder.

    Raises UserError if it is a file of another kind, or a folder of compressed archives alone.
    """
    path = as_class_folders(lone_table(path) or path)
    is_in_one = format_of(path) in (*formats(), *TABLES) and not is_folder(Path(path))
    if is_remote(path) or is_in_one:
        return False
    if is_file(Path(path)):
        first = "decompress it, or " if format_of(path) in COMPRESSED else ""
        message = f"is no data set that is read; {first}set an archive ({' '.join(formats())}), a table "
        raise problem(path, f"{message}({' '.join(TABLES)}) or a folder with train/CLASS/*.jpg and val/CLASS/*.jpg")
    if not is_folder(Path(path)) or folders_in(below(path, "train")):
        return True
    archives, unread = archives_in(Files(path), path)
    others = {*folders_in(path)}.difference((*FOLDERS, FFCV))
    if others and not any(split_of(file.removeprefix(path)) for file in archives):
        archives = []
    if archives or tables_in(path):
        return False
    if (compressed := unread.get(PACKED)) and not others:
        raise problem(path, f"holds {first_few(compressed)}, which are compressed; decompress them")
    return True


def open_source(
    path: str, wanted: Wanted, report: Report, options: SourceOptions = _PLAIN, *, is_prepared: bool = True
) -> Images:
    """Find the images of a split, or of all.

    Raises UserError if no images exist, or they cannot be listed; if they are not `is_prepared`, also for class folders
    of a web server.
    """
    path = as_class_folders(lone_table(path) or path)
    files = Files(path)
    if is_in_class_folders(path):
        return folders_source(path, wanted, options, report)
    split = "val" if wanted == "evaluation" else wanted
    if split in ARCHIVES and files.holds(below(path, ARCHIVES[split])):
        return imagenet_source(files, path, split, report)
    if not is_remote(path) and (source := table_source(path, wanted, options)) is not None:
        return source
    if (source := packed_source(files, path, wanted, report, options)) is not None:
        return source
    if not is_remote(path):
        raise no_split(path, wanted)
    source = folders_source(path, wanted, options, report)
    if not is_prepared and None in sizes(source):
        message = "lists files without their sizes, as web servers do; run train prepare dataloader.folder=FOLDER, then"
        raise problem(path, f"{message} dataloader=ffcv dataloader.folder=FOLDER")
    return source
