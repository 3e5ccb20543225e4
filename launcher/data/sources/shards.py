"""Find the images of archives: tar shards, zip, Parquet and Arrow files, each listed once; imports no torch."""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO, ClassVar

from launcher.config.code import available
from launcher.config.options import own_kinds
from launcher.config.schema import Columns
from launcher.data.dropped import drops_of
from launcher.data.index import Archive, Images
from launcher.data.sources.arrange import Rows, add_archives, in_archives
from launcher.data.sources.formats import Listing, SourceOptions, list_tar, list_zip
from launcher.data.sources.layout import VAL, Wanted, below, is_remote, of_split, problem, readable
from launcher.data.sources.parquet import list_arrow, list_parquet
from launcher.data.sources.source import Files
from launcher.data.sources.tar import AHEAD
from launcher.data.workers import Report, in_threads
from launcher.errors import first_few
from launcher.files.cache import cached
from launcher.plugins import Complete

# What lists an archive of an extension, from its open file, its path and the columns of its table.
_FORMATS: dict[str, Callable[[BinaryIO, str, Columns], Listing]] = {
    ".tar": list_tar,
    ".zip": list_zip,
    ".parquet": list_parquet,
    ".arrow": list_arrow,
}
# Of the format of stored listings.
_VERSION = 4
# Folders of a data set that may contain its archives.
FOLDERS = ("", "data", "train", *VAL)
_SPLIT = re.compile(rf"(?:^|[^a-z])(train|{'|'.join(VAL)})(?=[^a-z]|$)")
# Files of the package datasets beside those of a data set: results of map and filter.
_CACHE = re.compile(r"cache-[^/]*\.arrow")
COMPRESSED = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst", ".7z", ".rar")
_NO_SPLIT = "archives of no split that is read"
PACKED = "files in a compressed form"
_CACHES = "caches of the package datasets"


class ArchiveFormat(Complete, ABC):
    """Another format of archives, as a class of the user's code; images are stored in it as they are.

    extension: of its files, in small letters, such as `.rec`.
    """

    extension: ClassVar[str]

    @abstractmethod
    def list(self, file: BinaryIO, archive: str, columns: Columns) -> Listing:
        """List the images of an open file at the path `archive`.

        Raises UserError if it is damaged.
        """


def formats() -> dict[str, Callable[[BinaryIO, str, Columns], Listing]]:
    """Return what lists an archive by its extension, also those of the user's code."""
    return {**_FORMATS, **{kind.extension: kind().list for kind in own_kinds(ArchiveFormat)}}


def format_of(path: str) -> str:
    """Return the extension of a file in small letters."""
    return PurePosixPath(path).suffix.lower()


def archives_in(files: Files) -> tuple[list[str], dict[str, list[str]]]:
    """Return the archives of a data set's path: itself, or files in its folders, and others by why they are not read.

    Raises UserError if a bucket cannot be listed.
    """
    known, path = formats(), files.url
    if format_of(path) in known:
        return [path], {}
    names = sorted({name for folder in FOLDERS for name in files.names(below(path, folder))})
    others = {
        PACKED: [name for name in names if format_of(name) in COMPRESSED],
        _CACHES: [name for name in names if _CACHE.fullmatch(PurePosixPath(name).name)],
    }
    return [name for name in names if format_of(name) in known and name not in others[_CACHES]], others


def list_archives(files: Files, parts: Sequence[Wanted], options: SourceOptions, report: Report) -> list[Images]:
    """Find the images of splits, or of all, in the archives of a path, each of which is listed once.

    Raises UserError if an archive cannot be read, a label is missing, or no images exist.
    """
    path = files.url
    present, others = archives_in(files)
    if not files.holds(present[0]):
        raise problem(path, "no such file; set a tar, zip or Parquet file, a table of images, or a folder")
    splits = {file: split_of(file.removeprefix(path)) for file in present if file != path}
    is_divided = any(splits.values())
    of_parts = [of_split(path, splits, wanted) if is_divided else present for wanted in parts]
    for archives in of_parts:
        if len(kinds := sorted({*map(format_of, archives)})) > 1:
            raise problem(path, f"holds archives of several formats, {first_few(kinds)}; keep those of one format")
    every = [*dict.fromkeys(itertools.chain(*of_parts))]
    listed = in_threads(partial(_listed, files, options.columns), every, report=report, what="listing images")
    listings = dict(zip(every, listed, strict=True))
    rows = [Rows(wanted, options) for wanted in parts]
    rows[0].drop_unread(_NO_SPLIT, [file for file in splits if file not in listings])
    rows[0].drop_all(drops_of(others))
    images = []
    for part, archives in zip(rows, of_parts, strict=True):
        ours = {file: listings[file][0] for file in archives}
        order = _add(part, path, ours, options, is_divided=is_divided)
        images.append(part.images(path, order, in_archives([listings[file][1] for file in archives])))
        for listing in ours.values():
            # note: an archive of several parts counts for the first
            listing.dropped.clear()
    return images


def _add(
    rows: Rows, path: str, archives: Mapping[str, Listing], options: SourceOptions, *, is_divided: bool
) -> Sequence[str]:
    """Add the images of archives; return the order of the classes, where these have one."""
    listings = [*archives.values()]
    if not listings[0].is_table:
        return add_archives(rows, path, archives, options, is_divided=is_divided)
    for number, (file, listing) in enumerate(archives.items()):
        rows.add_table(number, file, listing, options)
    return listings[0].order if all(one.order == listings[0].order for one in listings) else ()


def split_of(file: str) -> str:
    """Return the name of a split in a file's path, or an empty text."""
    match = _SPLIT.search(file.lower())
    return match[1] if match else ""


def _listed(files: Files, columns: Columns, file: str) -> tuple[Listing, Archive]:
    """List an archive, or read the listing that was stored for the same version of it.

    Raises UserError if it cannot be read.
    """

    def listing() -> Listing:
        with readable(file, "download it again, or retry"), files.open(file, AHEAD) as opened:
            return formats()[format_of(file)](opened, file, columns)

    version = files.version(file)
    own = [] if format_of(file) in _FORMATS else [one.sha256 for one in available()]
    images = cached("listings", [_VERSION, file, version, asdict(columns), *own], Listing, listing)
    is_copied = is_remote(file) or format_of(file) == ".parquet"
    return images, Archive(file, version if is_copied else "", images.image)
