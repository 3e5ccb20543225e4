"""Find the images of archives: tar shards, zip, Parquet and Arrow files, each listed once; imports no torch."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import BinaryIO, ClassVar

from launcher.config.code import available
from launcher.config.options import own_kinds
from launcher.config.schema import Columns
from launcher.data.dropped import drops_of
from launcher.data.index import Archive, Images
from launcher.data.sources.arrange import Rows, add_archives
from launcher.data.sources.formats import Listing, SourceOptions, list_tar, list_zip
from launcher.data.sources.layout import VAL, Wanted, below, is_remote, of_split, problem, readable, unread
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


def archives_in(files: Files, path: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the archives of a data set's path: itself, or files in its folders, and others by why they are not read.

    Raises UserError if a bucket cannot be listed.
    """
    known = formats()
    if format_of(path) in known:
        return [path], {}
    names = sorted({name for folder in FOLDERS for name in files.names(below(path, folder))})
    others = {
        PACKED: [name for name in names if format_of(name) in COMPRESSED],
        _CACHES: [name for name in names if _CACHE.fullmatch(PurePosixPath(name).name)],
    }
    return [name for name in names if format_of(name) in known and name not in others[_CACHES]], others


def packed_source(
    files: Files,
    read: Callable[[str], tuple[Listing, str]],
    path: str,
    wanted: Wanted,
    options: SourceOptions,
    report: Report,
) -> Images | None:
    """Find the images of a split, or of all, in the archives of a path; None if there are no archives.

    read: as `listing_of`.

    Raises UserError if an archive cannot be read, a label is missing, or no images exist.
    """
    present, others = archives_in(files, path)
    if not present:
        return None
    if not files.holds(present[0]):
        raise problem(path, "no such file; set a tar, zip or Parquet file, a table of images, or a folder")
    splits = {file: split_of(file.removeprefix(path)) for file in present if file != path}
    is_divided = any(splits.values())
    archives = of_split(path, splits, wanted) if is_divided else present
    if len(kinds := sorted({*map(format_of, archives)})) > 1:
        raise problem(path, f"holds archives of several formats, {first_few(kinds)}; keep those of one format")
    listed = in_threads(read, archives, report=report, what=f"listing {wanted} images")
    listings, versions = zip(*listed, strict=True)
    rows = Rows(wanted, options)
    rows.drop_unread(_NO_SPLIT, unread(splits, archives))
    if wanted != "val":
        rows.drop_all(drops_of(others))
    if listings[0].is_table:
        order = [*listings[0].order] if all(one.order == listings[0].order for one in listings) else []
        for number, (file, listing) in enumerate(zip(archives, listings, strict=True)):
            rows.add_table(number, file, listing, options)
    else:
        order = add_archives(rows, path, dict(zip(archives, listings, strict=True)), options, is_divided=is_divided)
    stored = [
        Archive(file, version if is_remote(file) or format_of(file) == ".parquet" else "", listing.image)
        for file, version, listing in zip(archives, versions, listings, strict=True)
    ]
    return rows.folder(path, order, lambda places: {"archives": stored, "places": places})


def split_of(file: str) -> str:
    """Return the name of a split in a file's path, or an empty text."""
    match = _SPLIT.search(file.lower())
    return match[1] if match else ""


def listing_of(files: Files, columns: Columns, file: str) -> tuple[Listing, str]:
    """List an archive, or read the listing that was stored for the same version of it; return the version too.

    Raises UserError if it cannot be read.
    """

    def listing() -> Listing:
        with readable(file, "download it again, or retry"), files.open(file, AHEAD) as opened:
            return formats()[format_of(file)](opened, file, columns)

    version = files.version(file)
    own = [] if format_of(file) in _FORMATS else [one.sha256 for one in available()]
    return cached("listings", [_VERSION, file, version, asdict(columns), *own], Listing, listing), version
