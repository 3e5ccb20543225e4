"""Find the images of a data set's path: class folders, tar files, or ImageNet's; imports no torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.config.schema import Dataset
from launcher.data.folder import Folder, is_folder, is_image, is_remote, problem, same_classes, scan, sizes
from launcher.data.folder import splits as split_folder
from launcher.data.inspection import check_classes
from launcher.data.sources.source import Files, Report, Source, below, labelled
from launcher.data.sources.tar import ARCHIVES, class_folders, imagenet_source
from launcher.data.unreadable import unreadable
from launcher.errors import Problem, UserError


def open_sources(dataset: Dataset, seed: int, path: str, report: Report) -> tuple[Source, Source]:
    """Find the training and validation images of a data set, of the same classes.

    With `dataset.skip_bad`, the validation split is drawn from the readable images.

    Raises UserError if no images exist, they cannot be listed, or a class has no training images.
    """
    share = dataset.val_split
    if share is None:
        train, val = same_classes(*(open_source(path, split, report) for split in ("train", "val")))
    elif is_remote(path) or path.endswith(".tar"):
        message = "needs class folders on this machine; unpack or copy the images, or remove the key"
        raise UserError(Problem(message, "dataset.val_split", share))
    else:
        train, val = _divided(dataset, seed, Path(path), report)
    check_classes(train.classes, train.labels, val.labels, "dataset.path", path)
    return train, val


def open_source(path: str, split: str, report: Report) -> Source:
    """Find the images of a split: in class folders, in a tar file of them, or in ImageNet's; here or at a URL.

    Raises UserError if no images exist, or they cannot be listed.
    """
    files = Files(path)
    if path.endswith(".tar"):
        if not files.holds(path):
            raise problem(path, "no such file; set a tar file of class folders, or a folder")
        return class_folders(files, path, split, report)
    if not is_remote(path) and is_folder(Path(path) / split):
        return folder_source(scan(Path(path), split))
    if files.holds(below(path, ARCHIVES[split])):
        return imagenet_source(files, path, split, report)
    if is_remote(path):
        return _remote_folders(files, split, report)
    if is_folder(Path(path)):
        raise problem(path, f"has neither a {split}/ folder of class folders nor {ARCHIVES[split]}; add one of them")
    return folder_source(scan(Path(path), split))


def folder_source(folder: Folder) -> Source:
    """Return the images of class folders on this machine."""
    root, names = str(folder.root.resolve()), folder.files
    return Source(root, folder.split, folder.classes, names, folder.labels, Files(root), root, partial(sizes, folder))


def _divided(dataset: Dataset, seed: int, path: Path, report: Report) -> tuple[Source, Source]:
    whole = split_folder(path, dataset, seed)
    bad = unreadable(path, whole, report) if dataset.skip_bad else {}
    train, val = map(folder_source, split_folder(path, dataset, seed, bad))
    skipped = {name.removeprefix(whole[0].place): reason for name, reason in bad.items()}
    return replace(train, skipped=skipped), val


def _remote_folders(files: Files, split: str, report: Report) -> Source:
    """Find the images of class folders in a bucket or on a web server: URL/SPLIT/CLASS/NAME.

    Raises UserError if no images exist, or they cannot be listed.
    """
    path, what, reason = files.url, f"listing {split} images", ""
    report(what, 0, 1)
    system = files.system()
    try:
        base = system._strip_protocol(below(path, split)).rstrip("/") + "/"
        listed = system.find(base, detail=True)
    except FileNotFoundError as error:
        # note: only the text distinguishes a missing bucket
        listed, reason = {}, f" ({error})"
    except Exception as error:
        raise files.unreachable(error) from None
    report(what, 1, 1)
    bytes_of = {str(file).removeprefix(base): facts.get("size") for file, facts in listed.items()}
    images = sorted(
        name.split("/") for name in bytes_of if name.count("/") == 1 and name[0] != "." and is_image(name.split("/")[1])
    )
    if not images:
        raise problem(path, f"has neither {split}/CLASS/*.jpg nor ImageNet's tar files{reason}; set another URL")
    classes, names, labels = labelled(images)
    return Source(path, split, classes, names, labels, files, base, lambda: [bytes_of[name] for name in names])
