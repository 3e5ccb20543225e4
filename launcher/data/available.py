"""Is the data set there, and how large is it: asked before anything starts; imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.config.schema import Dataset, FFCVLoader, RunConfig
from launcher.data.beton import open_split
from launcher.data.folder import counts, is_folder, only_prepared
from launcher.data.small_file import open_small
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan


def with_counts(config: RunConfig, *, must_exist: bool) -> RunConfig:
    """The config with the number of classes and pictures read from the folder.

    Raises:
        UserError: the folder is not given, not there, or not what the config says; without `must_exist` only if
            the counts are neither in the config nor in a folder.
    """
    dataset = config.dataset
    if isinstance(config.dataloader, FFCVLoader):
        return _with_ffcv_counts(config, must_exist=must_exist)
    if dataset.kind == "shapes" or config.dataloader.name == "synthetic":
        return config if None not in _given(dataset) else _missing_counts(dataset)
    if dataset.path is None or not is_folder(Path(dataset.path)):
        if must_exist or None in _given(dataset):
            raise UserError(_not_there(dataset))
        return config
    if not must_exist and None not in _given(dataset):
        return config
    return _counted(config, dataset.path, *counts(Path(dataset.path)))


def check_counts(plan: Plan, classes: int, samples: int, where: Path) -> None:
    """The pictures may have changed since they were counted.

    Raises:
        UserError: the classes or training pictures are not as many as planned for.
    """
    planned = {"dataset.classes": plan.config.dataset.classes, "dataset.train_samples": plan.train_samples}
    found = {"dataset.classes": classes, "dataset.train_samples": samples}
    problems = [
        Problem(f"{where} holds {found[key]}; give that number or another dataset.path", key, planned[key])
        for key in planned
        if planned[key] != found[key]
    ]
    if problems:
        raise UserError(*problems)


def _with_ffcv_counts(config: RunConfig, *, must_exist: bool) -> RunConfig:
    if not must_exist and None not in _given(config.dataset):
        return config
    train, val = open_split(config, "train"), open_split(config, "val")
    open_small(config, train)
    return _counted(config, train.path.parent, max(train.classes, val.classes), train.samples, val.samples)


def _counted(config: RunConfig, where: Path | str, classes: int, train: int, val: int) -> RunConfig:
    dataset = config.dataset
    if dataset.classes is not None and classes != dataset.classes:
        message = f"{where} holds {classes} classes; set dataset.classes=null to take what is there"
        raise UserError(Problem(message, "dataset.classes", dataset.classes))
    return replace(config, dataset=replace(dataset, classes=classes, train_samples=train, val_samples=val))


def _given(dataset: Dataset) -> tuple[int | None, int | None, int | None]:
    return dataset.classes, dataset.train_samples, dataset.val_samples


def _missing_counts(dataset: Dataset) -> RunConfig:
    message = "synthetic pictures need dataset.classes, dataset.train_samples and dataset.val_samples"
    raise UserError(Problem(message, "dataset", dataset.name))


def _not_there(dataset: Dataset) -> Problem:
    if dataset.path and only_prepared(dataset.path):
        message = (
            f"only train prepare reads it: train prepare dataset={dataset.name} dataset.path={dataset.path} "
            "dataloader.folder=FOLDER, then train with dataloader=ffcv dataloader.folder=FOLDER"
        )
        return Problem(message, "dataset.path", dataset.path)
    what = "is no folder" if dataset.path else "is not given"
    message = (
        f"{what}; point it at class folders: dataset.path=/data/{dataset.name} with train/CLASS/*.jpg and "
        f"val/CLASS/*.jpg (dataset=shapes is built in and needs none)"
    )
    return Problem(message, "dataset.path", dataset.path)
