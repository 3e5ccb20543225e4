"""Find the images of a data set's path: class folders, tar files, or ImageNet's; imports no torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.config.schema import Dataset
from launcher.data.classes import check_classes
from launcher.data.folder import VAL, Folder, is_remote, problem, same_classes, scan, split_folder
from launcher.data.folder import sizes as bytes_of
from launcher.data.folder import splits as split_images
from launcher.data.listing import in_class, is_folder
from launcher.data.sources.source import Files, Report, Source, below, labelled
from launcher.data.sources.tar import ARCHIVES, class_folders, imagenet_source
from launcher.data.unreadable import unreadable
from launcher.errors import Problem, UserError


def open_sources(dataset: Dataset, seed: int, path: str, report: Report) -> tuple[Source, Source]:
    """Find the training and validation images of a data set, of the same classes.

    With `dataset.skip_bad`, the validation split is drawn from the readable images.

    Raises UserError if no images exist, they cannot be listed, or a class has no training images.
    """
    fraction = dataset.val_split
    if fraction is None:
        train, val = same_classes(*(open_source(path, split, report) for split in ("train", "val")))
    elif is_remote(path) or path.endswith(".tar"):
        message = "needs class folders on this machine; unpack or copy the images, or remove the key"
        raise UserError(Problem(message, "dataset.val_split", fraction))
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
    if not is_remote(path) and is_folder(split_folder(Path(path), split)):
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
    return Source(
        root, folder.split, folder.classes, names, folder.labels, Files(root), root, partial(bytes_of, folder)
    )


def _divided(dataset: Dataset, seed: int, path: Path, report: Report) -> tuple[Source, Source]:
    whole = split_images(path, dataset, seed)
    bad = unreadable(path, whole, report) if dataset.skip_bad else {}
    train, val = map(folder_source, split_images(path, dataset, seed, bad))
    skipped = {name.removeprefix(whole[0].place): reason for name, reason in bad.items()}
    return replace(train, skipped=skipped), val


def _remote_folders(files: Files, split: str, report: Report) -> Source:
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
        sizes = {str(file).removeprefix(base): facts.get("size") for file, facts in listed.items()}
        if images := sorted(image for file in sizes if (image := in_class(file.split("/")))):
            report(what, 1, 1)
            classes, names, labels = labelled(images)
            of_names = [sizes[name] for name in names]
            return Source(path, split, classes, names, labels, files, base, partial(list, of_names))
    raise problem(path, f"has neither {split}/CLASS/*.jpg nor ImageNet's tar files{reason}; set another URL")
