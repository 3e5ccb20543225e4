"""Which kind of source a data set's path is; imports no torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from launcher.config.schema import RunConfig
from launcher.data.classes import check_classes, same_classes
from launcher.data.folder import TAR, is_folder, is_remote, only_prepared, scan, splits
from launcher.data.sources.imagenet import ARCHIVES, imagenet_source
from launcher.data.sources.local import LocalFiles, folder_source
from launcher.data.sources.remote import RemoteFiles, remote_folders
from launcher.data.sources.source import Report, Source, Storage, below, problem
from launcher.data.sources.tar import class_folders
from launcher.data.unreadable import unreadable
from launcher.errors import Problem, UserError


def open_sources(config: RunConfig, path: str, report: Report, *, skip_bad: bool) -> tuple[Source, Source]:
    """The training and validation pictures of a data set, of the same classes.

    With `skip_bad`, a share for validation is drawn from the pictures that can be read.

    Raises:
        UserError: there are none, they cannot be listed, or a class cannot be learnt.
    """
    share = config.dataset.val_split
    if share is None:
        train, val = same_classes(*(open_source(path, split, report) for split in ("train", "val")))
    elif only_prepared(path):
        message = "takes class folders on this machine; unpack or copy the pictures, or leave it out"
        raise UserError(Problem(message, "dataset.val_split", share))
    else:
        train, val = _divided(config, Path(path), report, skip_bad=skip_bad)
    check_classes(train.classes, train.labels, val.labels, "dataset.path", path)
    return train, val


def _divided(config: RunConfig, path: Path, report: Report, *, skip_bad: bool) -> tuple[Source, Source]:
    whole = splits(path, config.dataset, config.seed)
    bad = unreadable(path, whole, report) if skip_bad else {}
    train, val = map(folder_source, splits(path, config.dataset, config.seed, bad))
    names = {name.removeprefix(whole[0].place): reason for name, reason in bad.items()}
    return replace(train, left_out=names), val


def open_source(path: str, split: str, report: Report) -> Source:
    """The pictures of a split: in class folders, in a tar file of them, or in ImageNet's; of this machine or a URL.

    Raises:
        UserError: there are none, or they cannot be listed.
    """
    storage: Storage = RemoteFiles(path) if is_remote(path) else LocalFiles()
    if path.endswith(TAR):
        if not storage.holds(path):
            raise problem(path, "is no file; give a tar file of class folders, or a folder")
        return class_folders(storage, path, split, report)
    if not is_remote(path) and is_folder(Path(path) / split):
        return folder_source(scan(Path(path), split))
    if storage.holds(below(path, ARCHIVES[split])):
        return imagenet_source(storage, path, split, report)
    if is_remote(path):
        return remote_folders(path, split, report)
    if is_folder(Path(path)):
        raise problem(path, f"holds neither a {split}/ folder of class folders nor {ARCHIVES[split]}")
    return folder_source(scan(Path(path), split))
