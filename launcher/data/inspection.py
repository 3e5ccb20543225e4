"""Check that a data set exists and count its classes and images before a run starts; imports no torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np

from launcher.config.schema import Dataset, RunConfig
from launcher.counts import count_of
from launcher.data.builtin import check_built_in
from launcher.data.classes import are_places, check_labels, class_counts, moved, named, places_in, read_labels
from launcher.data.decode import lacking
from launcher.data.dropped import UNREADABLE, notes_on
from launcher.data.duplicates import duplicate_notes
from launcher.data.index import Images
from launcher.data.listing import is_file, is_folder
from launcher.data.loaders.base import Source, source_of
from launcher.data.masks.pairs import check_reads_masks
from launcher.data.normalization import check_types, normalization_problems, with_normalization
from launcher.data.pixel_types import PixelType
from launcher.data.sources.find import evaluation_images
from launcher.data.sources.layout import is_remote, problem
from launcher.data.sources.source import lacks_package
from launcher.data.unreadable import reasons, unreadable
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, UserError, first_few
from launcher.plan.plan import Plan


@dataclass(frozen=True)
class Inspection:
    """The config with the counted classes and images, and notes for the user.

    `skipped` maps images that `dataset.skip_bad` skips, relative to the data set's folder, to reasons.
    `classes` are the names of the labels, if available; `splits` the images of each split, if those are in class
    folders, or its files of tokens. `seen` is false if counts of the config replace missing images.
    """

    config: RunConfig
    notes: list[str]
    skipped: dict[str, str] = field(default_factory=dict)
    classes: list[str] | None = None
    splits: Sequence[Images] = ()
    seen: bool = True

    def of(self, config: RunConfig) -> Self:
        """Return what was seen as that of another config of the same images."""
        dataset = replace(self.config.dataset, native_size=config.dataset.native_size)
        return replace(self, config=replace(config, dataset=dataset))


def inspect_data(
    config: RunConfig, *, must_exist: bool, skipped: Collection[str] | None = None, report: Report = quiet
) -> Inspection:
    """Count the classes and images of a data set, and check that each class has training images.

    `skipped` are the images that `dataset.skip_bad` skips; None reads all images to find them, and notes duplicates.

    Raises UserError if a folder is not set, missing, or does not match the config; without `must_exist` a missing
    folder is no error if the config has the counts.
    """
    source, dataset = source_of(config), config.dataset
    check_reads_masks(config)
    is_read = config.dataloader.reads and not dataset.is_built_in
    folder = source.reads_from(config) if is_read else None
    # note: counts in the config do not replace those of an existing folder
    must_exist = must_exist or (folder is not None and is_here(folder))
    by_channel = "image" in config.task.needs
    if problems := [*normalization_problems(dataset)] if by_channel else ():
        raise UserError(*problems)
    if is_read and has_counts(dataset) and not must_exist:
        inspection = Inspection(config, [])
    else:
        inspection = _inspected(source, config, skipped, report)
    if by_channel:
        check_types(config, inspection.splits)
        inspection = replace(inspection, config=with_normalization(inspection.config, inspection.splits, report))
    if not must_exist and folder is not None:
        used = f"using the counts of dataset={dataset.name}, {count_of(dataset.train_samples or 0, 'training image')}"
        inspection.notes.append(f"{folder} is not on this machine; {used}")
        inspection = replace(inspection, seen=False)
    test_path = config.dataset.test_path
    # note: those of missing images are not known
    if test_path is not None and not inspection.classes and inspection.seen:
        message = "needs class names, which this data set does not have; remove the key"
        raise UserError(Problem(message, "dataset.test_path", test_path))
    if test_path is not None and inspection.seen and (must_exist or Path(test_path).exists()):
        test, notes = held_out(config, inspection.classes, report)
        check_types(config, [test])
        inspection.notes.extend(f"dataset.test_path: {note}" for note in notes)
        inspection = replace(inspection, splits=[*inspection.splits, test] if inspection.splits else ())
    if skipped is None:
        inspection.notes.extend(duplicate_notes(inspection.splits, quick=True))
    return inspection


def held_out(config: RunConfig, classes: Sequence[str] | None, report: Report = quiet) -> tuple[Images, list[str]]:
    """Return the images of `dataset.test_path`, and notes.

    Raises UserError if they are missing, or have no class of the run.
    """
    try:
        found = source_of(config).held_out(config, classes or [], report)
        images, notes = found or match_images(str(config.dataset.test_path), config, classes or [], report)[:2]
        _check_readable(config, [images], notes, str(config.dataset.test_path))
        return replace(images, split="test"), notes
    except UserError as error:
        raise UserError(*(replace(problem, key="dataset.test_path") for problem in error.problems)) from None


def match_images(
    path: str, config: RunConfig, classes: Sequence[str], report: Report = quiet
) -> tuple[Images, list[str], dict[str, str]]:
    """Label other images by a run's classes or numbers, matched by name; `dataset.skip_bad` applies here too.

    Folders named by numbers alone, as ImageNet-v2's, are the run's classes by zero-based position if all of these have
    other names. Also returns notes on skipped images and on classes that only one of the two has, and the unreadable
    images with reasons.

    Raises UserError if the images are missing, or have no class or other numbers than the run.
    """
    images = evaluation_images(path, config, classes, report)
    bad = unreadable([images], PixelType.of(config.dataset), report) if config.dataset.skip_bad else {}
    images = images.without(bad)
    notes = skip_notes(bad, [images])
    names, labels = read_labels(config, images.classes)
    labels, places = labels[images.labels], places_in(names, classes)
    if are_places(names, classes):
        places = np.array([*map(int, names)])
        notes.append(
            f"classes are numbers, so they are read as places in the run's list: {names[0]} is {classes[int(names[0])]}"
        )
    matched = replace(images, classes=[*classes], labels=moved(labels, places, len(classes)))
    if config.task.labelled == "numbers":
        if names != matched.classes:
            message = f"has the numbers {first_few(names)}, but the run {first_few(classes)}; set other images"
            raise UserError(Problem(message, "dataset.path", path))
        return matched, notes, bad
    by_class, others = config.task.labelled == "class", np.flatnonzero(places < 0).tolist()
    matched = matched.part(matched.labels >= 0) if by_class else matched
    if len(others) == len(names) or not matched.names:
        message = f"contains no class of the run; its classes are {first_few(names)}"
        message += f", the run's {first_few(classes)}; set other images"
        raise UserError(Problem(message, "dataset.path", path))
    if others:
        shown = named(names, others, class_counts(labels, len(names)), "")
        notes.append(f"skipping {count_of(len(others), 'class')} that the run does not have: {shown}")
    if missing := np.flatnonzero(class_counts(matched.labels, len(classes)) == 0).tolist():
        shown = first_few([classes[number] for number in missing])
        notes.append(f"no images of {len(missing):,} of the run's {count_of(len(classes), 'class')}: {shown}")
    return matched, notes, bad


def _check_readable(config: RunConfig, splits: Sequence[Images], notes: list[str], where: Path | str) -> None:
    """Check that there are images, and, since `skip_bad` skips others, that tables' files and packages are there.

    Raises UserError with the notes, or the number of files and the first ones.
    """
    for split in splits:
        if not len(split):
            message = "; ".join([f"has no {split.split} image that can be read", *notes])
            raise problem(where, f"{message}; repair some, or set other images")
    if config.dataset.skip_bad:
        return
    total = sum(len(split) for split in splits)
    listed = [split for split in splits if split.paths is not None]
    if missing := [file for split in listed for file in split.missing_files()]:
        message = (
            f"{len(missing):,} of the {count_of(total, 'image')} that it lists do not exist: {first_few(missing, 10)}; "
        )
        remedy = "restore them, remove their rows, or set dataset.skip_bad=true"
        raise problem(listed[0].root, f"{message}{remedy}")
    for suffixes, package in lacking().items():
        if files := [file for split in splits for file in split.names if file.lower().endswith(suffixes)]:
            message = f"{len(files):,} of the {count_of(total, 'image')}, such as {files[0]}, need {package}; "
            raise problem(splits[0].root, f"{message}install it, convert them, or set dataset.skip_bad=true")


def has_counts(dataset: Dataset) -> bool:
    """Return whether the config has the numbers of classes, training and validation images."""
    return None not in (dataset.classes, dataset.train_samples, dataset.val_samples)


def is_here(path: str) -> bool:
    """Return whether a data set's path exists, or can be one of a bucket."""
    if is_remote(path):
        return not lacks_package(path)
    return is_file(Path(path)) or is_folder(Path(path))


def check_counts(plan: Plan, classes: int, samples: int, where: Path | str) -> None:
    """Check that the counts are those of the plan; images may have changed since.

    Raises UserError if the number of classes or training images differs from the plan's.
    """
    counts = (
        ("dataset.classes", plan.config.dataset.classes, classes),
        ("dataset.train_samples", plan.train_samples, samples),
    )
    if problems := [
        Problem(f"{where} has {actual}; restore the images, or set another dataset.path", key, planned)
        for key, planned, actual in counts
        if planned != actual
    ]:
        raise UserError(*problems)


def skip_notes(bad: Mapping[str, str], splits: Sequence[Images], cannot: str = "decoded") -> list[str]:
    """Return notes on what is not read; with reasons for images that `dataset.skip_bad` skips."""
    found = f"dataset.skip_bad=true: skipping {count_of(len(bad), 'image')} that cannot be {cannot}: {reasons(bad)}"
    drops = [{why: one for why, one in split.dropped.items() if why != UNREADABLE or not bad} for split in splits]
    return [*([found] if bad else []), *notes_on(*drops)]


def _inspected(source: Source, config: RunConfig, skipped: Collection[str] | None, report: Report) -> Inspection:
    """Find, check and count the images of a source; raises UserError as `inspect_data`."""
    if (found := source.find(config, skipped, report)) is None:
        if not has_counts(config.dataset):
            message = "synthetic images need counts; set dataset.classes, dataset.train_samples and dataset.val_samples"
            raise UserError(Problem(message, "dataset", config.dataset.name))
        names, notes = check_built_in(config) if config.dataloader.reads else (None, [])
        return Inspection(config, notes, classes=names)
    dropped = skip_notes(found.bad, found.images, found.cannot)
    _check_readable(config, found.images, dropped, found.where)
    train, val = found.images
    try:
        notes = check_labels(config, train.classes, train.labels, val.labels, found.key, found.where)
    except UserError as error:
        # note: images may be missing because they are skipped
        (wrong,) = error.problems
        raise UserError(replace(wrong, message="; ".join([wrong.message, *dropped]))) from None
    notes = [*_division(config, len(train), len(val)), *notes, *found.notes, *dropped]
    names, classes = (train.classes, len(train.classes)) if found.classes is None else (None, found.classes)
    splits = found.images if train.names else ()
    return Inspection(_counted(config, found.where, classes, train, val), notes, dict(found.bad), names, splits)


def _counted(config: RunConfig, where: Path | str, classes: int, train: Images, val: Images) -> RunConfig:
    """Return the config with classes, training and validation images; raises UserError if others are set."""
    dataset = config.dataset
    if dataset.classes is not None and classes != dataset.classes:
        instead = "dataset=image_folder" if dataset.is_built_in else f"dataset.classes={classes}, or null to count them"
        message = f"{where} has {count_of(classes, 'class')}; set {instead}"
        raise UserError(Problem(message, "dataset.classes", dataset.classes))
    return replace(config, dataset=replace(dataset, classes=classes, train_samples=len(train), val_samples=len(val)))


def _division(config: RunConfig, train: int, val: int) -> Iterator[str]:
    """Yield how many images are held out for validation, of those that are divided."""
    dataset, total = config.dataset, count_of(train + val, "image")
    if dataset.val_split is not None and "image" in config.task.needs:
        each = "from each class " * (config.task.labelled == "class")
        drawn = f"dataset.val_split={dataset.val_split:g}: holding out {val:,} of {total}, drawn {each}"
        yield f"{drawn}by seed={config.seed}"
    if dataset.folds is not None:
        grouped = f", each group in one fold (dataset.groups={dataset.groups})" if dataset.groups is not None else ""
        drawn = f"dataset.folds={dataset.folds}: fold {dataset.fold} holds out {val:,} of {total}"
        yield f"{drawn}, drawn by seed={config.seed}{grouped}"
