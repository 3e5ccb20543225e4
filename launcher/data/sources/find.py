"""Find the images of a path: class folders, archives, tables, ImageNet's or CIFAR's files; imports no torch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from launcher.config.schema import Dataset, RunConfig
from launcher.data.builtin import ensure_folder
from launcher.data.classes import in_classes_of, read_labels
from launcher.data.division import divide
from launcher.data.index import Images
from launcher.data.listing import is_file, is_folder
from launcher.data.pixel_types import PixelType
from launcher.data.sources.cifar import as_class_folders
from launcher.data.sources.folders import list_bucket, list_folders
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.imagenet import are_imagenet, list_imagenet
from launcher.data.sources.layout import DIVIDED, FFCV, Wanted, below, is_remote, problem, split_among
from launcher.data.sources.path_tables import TABLES, folders_in, list_tables, lone_table, tables_in
from launcher.data.sources.shards import (
    COMPRESSED,
    FOLDERS,
    PACKED,
    archives_in,
    format_of,
    formats,
    list_archives,
    split_of,
)
from launcher.data.sources.source import Files
from launcher.data.unreadable import unreadable
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError, first_few

_PLAIN = SourceOptions()

# Lists the images of parts of a data set.
List = Callable[[Files, Sequence[Wanted], SourceOptions, Report], list[Images]]


def read_splits(config: RunConfig, skipped: Collection[str] | None = ()) -> tuple[Images, Images]:
    """Find the images of `splits` with the labels of the task, as `labelled_as`."""
    return labelled_as(config, splits(config.dataset, config.seed, config.task.labelled, skipped))


def labelled_as(config: RunConfig, both: tuple[Images, Images]) -> tuple[Images, Images]:
    """Return images with the labels of the task, int64 [N] or rows [N, K], and the names of these.

    Raises UserError if a label is none of the task.
    """
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
    dataset: Dataset, seed: int, labelled: str, skipped: Collection[str] | None = (), report: Report = quiet
) -> tuple[Images, Images]:
    """Find the training and validation images of `find_splits`."""
    return find_splits(dataset, seed, labelled, skipped, report)[0]


def find_splits(
    dataset: Dataset,
    seed: int,
    labelled: str,
    skipped: Collection[str] | None,
    report: Report,
    *,
    is_prepared: bool = False,
) -> tuple[tuple[Images, Images], dict[str, str]]:
    """Find the training and validation images of a data set, without those `skipped`; a class is the text of a label.

    None decodes all to find those that `dataset.skip_bad` skips; these are returned with reasons. With
    `dataset.val_split` or `dataset.folds` the split is drawn from each class if images are `labelled` by a class, else
    from all.

    Raises UserError if images are missing or cannot be listed, or only `train prepare` reads them (`is_prepared`).
    """
    images, bad = _listed(dataset, labelled, report, is_prepared=is_prepared), dict[str, str]()
    if skipped is None and dataset.skip_bad and not dataset.is_built_in:
        bad = unreadable(images, PixelType.of(dataset), report)
    readable = [one.without(bad if skipped is None else skipped) for one in images]
    return divide(readable, dataset, seed, by_class=labelled == "class"), bad


def _listed(dataset: Dataset, labelled: str, report: Report, *, is_prepared: bool) -> list[Images]:
    """Return the images of training and validation, or all that are to be divided."""
    groups = dataset.groups if isinstance(dataset.groups, str) else None
    path, options = images_path(dataset), _options(dataset, labelled, groups=groups)
    if dataset.is_divided:
        with _keyed(dataset):
            return list_images(path, ("all",), report, options, is_prepared=is_prepared)
    both = list_images(path, ("train", "val"), report, options, is_prepared=is_prepared)
    return [replace(one, place=one.place or f"{one.split}/") for one in both]


def _options(dataset: Dataset, labelled: str, classes: Sequence[str] = (), groups: str | None = None) -> SourceOptions:
    extensions = PixelType.of(dataset).extensions
    return SourceOptions(dataset.columns, dataset.links, labelled, classes, groups, extensions, dataset.class_level)


@contextmanager
def _keyed(dataset: Dataset) -> Iterator[None]:
    """State the key that divides the images in errors of `dataset.val_split`."""
    key = DIVIDED if dataset.folds is None else "dataset.folds"
    value = dataset.val_split if dataset.folds is None else dataset.folds
    try:
        yield
    except UserError as error:
        raise UserError(
            *(replace(one, key=key, value=value) if one.key == DIVIDED else one for one in error.problems)
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
    options = _options(config.dataset, config.task.labelled, classes)
    return open_source(path, "evaluation", report, options, is_prepared=False)


def _kind_of(files: Files, parts: Sequence[Wanted]) -> List:
    """Return what lists the images of a path.

    Raises UserError if it is a file of another kind, or a folder of compressed archives alone.
    """
    path = files.url
    is_in_one = format_of(path) in (*formats(), *TABLES) and not is_folder(Path(path))
    if not is_remote(path) and not is_in_one:
        if is_file(Path(path)):
            first = "decompress it, or " if format_of(path) in COMPRESSED else ""
            message = f"is no data set that is read; {first}set an archive ({' '.join(formats())}), a table "
            raise problem(path, f"{message}({' '.join(TABLES)}) or a folder with train/CLASS/*.jpg and val/CLASS/*.jpg")
        if not is_folder(Path(path)) or folders_in(below(path, "train")):
            return list_folders
    archives, unread = archives_in(files)
    tables = {} if is_remote(path) else tables_in(path)
    if not is_remote(path) and not is_in_one:
        others = {*folders_in(path)}.difference((*FOLDERS, FFCV))
        is_divided = any(split_of(file.removeprefix(path)) for file in archives)
        if not tables and (not archives or (others and not is_divided)):
            if (compressed := unread.get(PACKED)) and not others:
                raise problem(path, f"holds {first_few(compressed)}, which are compressed; decompress them")
            return list_folders
    if are_imagenet(files, parts):
        return list_imagenet
    if path in tables or any(split_among(path, tables.values(), one) for one in parts):
        return list_tables
    if archives:
        return list_archives
    return list_bucket if is_remote(path) else list_tables


def open_source(
    path: str, wanted: Wanted, report: Report, options: SourceOptions = _PLAIN, *, is_prepared: bool = True
) -> Images:
    """Find the images of a split, or of all, as `list_images`."""
    return list_images(path, (wanted,), report, options, is_prepared=is_prepared)[0]


def list_images(
    path: str, parts: Sequence[Wanted], report: Report, options: SourceOptions, *, is_prepared: bool
) -> list[Images]:
    """Find the images of splits, or of all; reads each archive or table once.

    Raises UserError if no images exist, or they cannot be listed; if they are not `is_prepared`, also for class folders
    of a web server.
    """
    files = Files(as_class_folders(lone_table(path) or path))
    images = _kind_of(files, parts)(files, parts, options, report)
    if not is_prepared and any(one.are_in_bucket and None in one.sizes() for one in images):
        message = "lists files without their sizes, as web servers do; run train prepare dataloader.folder=FOLDER, then"
        raise problem(files.url, f"{message} dataloader=ffcv dataloader.folder=FOLDER")
    return images
