"""Find the images of archives: tar shards, zip, Parquet and Arrow files, each listed once; imports no torch."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from launcher.cache import cached
from launcher.config.schema import Columns
from launcher.data.folder import VAL, Folder, is_remote, problem
from launcher.data.listing import EXTENSIONS, in_class, is_ignored
from launcher.data.sources.formats import Listing, list_arrow, list_parquet, list_tar, list_zip
from launcher.data.sources.pieces import Archive, Packed
from launcher.data.sources.source import Files, below
from launcher.data.sources.tar import AHEAD
from launcher.data.workers import Report, in_threads
from launcher.errors import Problem, UserError

# What lists an archive of an extension, from its open file, its path and the columns of its table.
FORMATS: dict[str, Callable[[BinaryIO, str, Columns], Listing]] = {
    ".tar": list_tar,
    ".zip": list_zip,
    ".parquet": list_parquet,
    ".arrow": list_arrow,
}
# Of the format of stored listings.
_VERSION = 1
# Folders of a data set that may contain its archives.
FOLDERS = ("", "data", "train", *VAL)
_SPLIT = re.compile(rf"(?:^|[^a-z])(train|{'|'.join(VAL)})(?=[^a-z]|$)")
# (class, name) -> archive, first byte, bytes, compressed bytes
Places = dict[tuple[str, str], tuple[int, ...]]


def archives_in(files: Files, path: str) -> list[str]:
    """Return the archives of a data set's path, sorted: the path itself, or files in its folders.

    Raises UserError if a bucket cannot be listed.
    """
    if PurePosixPath(path).suffix in FORMATS:
        return [path]
    names = [name for folder in FOLDERS for name in files.names(below(path, folder) if folder else path)]
    return sorted({name for name in names if PurePosixPath(name).suffix in FORMATS})


def packed_source(files: Files, path: str, split: str, report: Report, columns: Columns) -> Folder | None:
    """Find the images of a split in the archives of a path, or of all if it is empty; None if there are no archives.

    Raises UserError if an archive cannot be read, or no images exist.
    """
    archives = archives_in(files, path)
    if not archives:
        return None
    if not files.holds(archives[0]):
        raise problem(path, "no such file; set a tar, zip or Parquet file, a table of images, or a folder")
    of_split = {file: split_of(file.removeprefix(path)) for file in archives} if archives != [path] else {}
    is_divided = any(of_split.values())
    if is_divided:
        name = _chosen(path, of_split.values(), split)
        archives = [file for file in archives if of_split[file] == name]
    what = f"listing {split or 'all'} images"
    listed = [*in_threads(partial(_listing, files, columns), archives, report=report, what=what)]
    listings = [listing for listing, _ in listed]
    images = _by_folder(listings)
    names = [*images] if is_divided else [_chosen(path, images, split)]
    chosen = {key: place for name in names for key, place in images.get(name, {}).items()}
    if not chosen:
        where = f".../{split}/CLASS/NAME" if split and not is_divided else ".../CLASS/NAME"
        raise problem(path, f"contains no images ({' '.join(EXTENSIONS)}) at {where}; set another file")
    copied = [is_remote(file) or file.endswith(".parquet") for file in archives]
    versions = [version * copy for (_, version), copy in zip(listed, copied, strict=True)]
    order = listings[0].order if all(listing.order == listings[0].order for listing in listings) else []
    return _source(path, split, [*map(Archive, archives, versions)], chosen, order)


def _source(path: str, split: str, archives: Sequence[Archive], images: Places, order: Sequence[str]) -> Folder:
    """Sort images by class and name; classes have the given order, or else that of their names."""
    classes = [*order] or sorted({name for name, _ in images})
    numbers = {name: number for number, name in enumerate(classes)}
    names = sorted(images, key=lambda name: (numbers[name[0]], name[1]))
    places = np.array([images[name] for name in names], np.int64)
    labels = np.array([numbers[name] for name, _ in names], np.int64)
    listed = ["/".join(name) for name in names]
    return Folder(path, split or "train", classes, listed, labels, Packed(archives, places))


def split_of(file: str) -> str:
    """Return the name of a split in a file's path, or an empty text."""
    match = _SPLIT.search(file.lower())
    return match[1] if match else ""


def _chosen(path: str, present: Iterable[str], split: str) -> str:
    """Return the name of a split among those present; of all images: the training images, or those of no split.

    Raises UserError if it is missing, or validation images exist besides those to divide.
    """
    names = {*present}
    if split:
        if name := next((name for name in (VAL if split == "val" else (split,)) if name in names), None):
            return name
        message = f"has neither a {split}/ folder nor archives or a table of the {split} split; add one"
        if split == "val":
            message += ", or set dataset.val_split=0.1"
        raise problem(path, message)
    if held_out := names.intersection(VAL[:-1]):
        message = f"{path} holds {held_out.pop()} images already; remove the key"
        raise UserError(Problem(message, "dataset.val_split", path))
    return "train" if "train" in names else ""


def _by_folder(listings: Sequence[Listing]) -> Mapping[str, Places]:
    """Group images by the name of a split in their path, or an empty name; of equal names the last counts.

    Rows of tables with equal names are all kept, under names with their position.
    """
    images: dict[str, Places] = {}
    for number, listing in enumerate(listings):
        for row, (file, label, place) in enumerate(zip(listing.names, listing.classes, listing.places, strict=True)):
            if (image := _class_of(file, label)) is None:
                continue
            folder, class_name, name = image
            if listing.is_table and (class_name, name) in images.get(folder, {}):
                name = f"{name}#{number}-{row}"
            images.setdefault(folder, {})[class_name, name] = (number, *place)
    return images


def _class_of(file: str, label: str | None) -> tuple[str, str, str] | None:
    """Return the folder of an image's split, or an empty name, its class and its name in the class; None without."""
    parts = PurePosixPath(file).parts
    start = next((number for number, part in enumerate(parts) if part in ("train", *VAL)), -1)
    folder = parts[start] if start >= 0 else ""
    if label is not None:
        return folder, label, name_in_class(file, label)
    if any(map(is_ignored, parts)):
        return None
    # note: without a split's folder, class folders may be below a top folder
    image = in_class(parts[start + 1 :] if folder else parts[-2:])
    return (folder, *image) if image else None


def name_in_class(file: str, label: str) -> str:
    """Return an image's path below the folder of its class, or the whole path if it has no such folder."""
    parts = PurePosixPath(file).parts
    start = next((number for number, part in enumerate(parts[:-1], 1) if part == label), 0)
    return "/".join(parts[start:])


def _listing(files: Files, columns: Columns, file: str) -> tuple[Listing, str]:
    """List an archive, or read the listing that was stored for the same version of it; return the version too.

    Raises UserError if it cannot be read.
    """

    def listing() -> Listing:
        try:
            with files.open(file, AHEAD) as opened:
                return FORMATS[PurePosixPath(file).suffix](opened, file, columns)
        except UserError:
            raise
        # note: the libraries of the formats raise arbitrary errors on damaged files
        except Exception as error:
            message = f"cannot be read ({type(error).__name__}: {error}); download it again, or retry"
            raise problem(file, message) from None

    version = files.version(file)
    return cached("listings", [_VERSION, file, version, asdict(columns)], Listing, listing), version
