"""List the images of one archive: tar and zip files; and the labels of tables, such as Parquet; imports no torch."""

import io
import itertools
import json
import math
import re
import stat
import tarfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from launcher.config.schema import Columns
from launcher.data.class_names import VALUES, class_name
from launcher.data.dropped import Drops, drop
from launcher.data.index import Piece
from launcher.data.listing import is_ignored, is_image
from launcher.data.pixel_types import ARRAYS
from launcher.data.sources.layout import SPLIT_NAMES, problem, tidy
from launcher.data.sources.tar import BoundedReads, read_members
from launcher.errors import Problem, UserError, first_few

_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)
# Bytes of a file with the label of an image.
_MOST_OF_A_CLASS, _MOST_OF_A_JSON = 1000, 1 << 20
_MOST_OF_A_DIRECTORY, _MOST_OF_A_FILE = 1 << 30, 1 << 62  # bytes; a zip file of ten million files, and what int64 holds
NO_COLUMNS = Columns(None, None, None, "|", None)
# Column names that are tried in turn if none is set.
_USUAL = {
    "image": ("image", "img", "path", "file_name", "file", "filename"),
    "label": ("label", "labels", "class", "target"),
}
# A name in a tar file as WebDataset reads it: the key, which ends at the first dot of the base name, and the field.
_SAMPLE = re.compile(r"((?:.*/|)[^./][^./]*)[.]([^/]*)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_FILE = "links in an archive, or other special files"
_NO_IMAGE = "samples without an image"
_OTHER_FIELD = "images of other fields of a sample"


@dataclass(frozen=True)
class SourceOptions:
    """How sources are read: columns of tables, links of class folders, and what each image needs as its label.

    It may be missing unless it is a `class` or `numbers`. `classes` are those of a run whose images are evaluated.
    `groups` and `class_level` are those of `dataset`. `extensions` are of images besides the usual ones.
    """

    columns: Columns = NO_COLUMNS
    links: str = "refuse"
    labelled: str = ""
    classes: Sequence[str] = ()
    groups: str | None = None
    extensions: tuple[str, ...] = ()
    class_level: str = "first"

    def check_label(self, text: str, file: str, entry: str, labels: str = "label", remove: str = "row") -> None:
        """Raise a UserError about an entry of a file without a label, a part of it or a right one, or class levels."""
        if self.class_level != "first":
            message = f"{file} has labels, not folders; set first"
            raise UserError(Problem(message, "dataset.class_level", self.class_level))
        columns, split = self.columns.label, self.labelled != "class"
        parts = [one.strip() for one in text.split(self.columns.separator)] if split else [text]
        if not self.labelled or (self.labelled == "classes" and not isinstance(columns, list)):
            return
        names = columns if isinstance(columns, list) and len(columns) == len(parts) else [labels] * len(parts)
        for name, part in zip(names, parts, strict=True):
            if part == "":
                raise problem(file, f"{entry} has no {name}; add it, or remove the {remove}")
            if (kind := VALUES.get(self.labelled)) and not kind[0](part):
                message = f"{file}: {entry} has the {name} {part}, {kind[1]}, remove the {remove}, or set other columns"
                raise UserError(Problem(message, "dataset.columns.label", columns))


@dataclass(frozen=True)
class Listing:
    """The images of one archive: names, classes (None: the folder), and places [start, bytes, compressed bytes or 0].

    `others` are the names of other files, and of folders, which end with a slash. `dropped` counts images that are not
    listed, with the first, by reason. `order` are the names of all classes, where the archive contains them. Names may
    be equal: rows of a table, whose images are in the column `image`, or samples.
    """

    names: list[str] = field(default_factory=list)
    classes: list[str | None] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    dropped: Drops = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    is_table: bool = False
    image: str = ""

    def add(self, name: str, label: str | None, start: int, size: int, deflated: int = 0) -> None:
        """Add an image."""
        self.names.append(name)
        self.classes.append(label)
        self.places.append((start, size, deflated))

    def files(self) -> Iterator[tuple[str, str | None, tuple[int, int, int]]]:
        """Yield name, label and place of the images, then of the other files and folders."""
        yield from zip(self.names, self.classes, self.places, strict=True)
        yield from ((name, None, (0, 0, 0)) for name in self.others)

    def drop(self, reason: str, name: str) -> None:
        """Count an image that is not listed."""
        drop(self.dropped, reason, name)


def label_text(values: Sequence[object], columns: Columns, where: str) -> str:
    """Return the text of a label from the values of its columns; several, and those of a list, are joined.

    A missing value, or NaN, is an empty text. Raises UserError about the row `where` it is, if one is no class.
    """
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    for one in flat:
        # note: JSON may have objects, and halves of surrogate pairs
        if not isinstance(one, str | int | float | None) or (isinstance(one, str) and _SURROGATE.search(one)):
            raise no_class(where, one, columns)
    missing = (one is None or (isinstance(one, float) and math.isnan(one)) for one in flat)
    return columns.separator.join("" if lacks else class_name(one) for one, lacks in zip(flat, missing, strict=True))


def no_class(where: str, value: object, columns: Columns) -> UserError:
    """Return an error about the label of a row."""
    message = f"{where} has the label {value}, which is no class; remove such rows or set dataset.columns.label"
    return UserError(Problem(message, "dataset.columns.label", columns.label))


def label_columns(names: Sequence[str], columns: Columns, where: str) -> list[str]:
    """Return the columns of the labels of a table; raises as `column_of`."""
    several = columns.label if isinstance(columns.label, list) else [columns.label]
    return [column_of(names, "label", one, where) for one in several]


def column_of(names: Collection[str], what: str, wanted: str | None, where: str) -> str:
    """Return the column of the images or labels of a table: the wanted one, or a usual one, of images the first.

    Raises UserError if it does not exist, or if several may be the labels.
    """
    if what == "label" and not wanted and len(usual := [name for name in _USUAL[what] if name in names]) > 1:
        message = f"{where} has the columns {' and '.join(usual)}, which may differ; set one of them"
        raise UserError(Problem(message, f"dataset.columns.{what}", wanted))
    if (name := _present(names, what, wanted)) is None:
        message = f"{where} has no such column; its columns are {first_few([*names])}; set one of them"
        raise UserError(Problem(message, f"dataset.columns.{what}", wanted))
    return name


def _present(names: Collection[str], what: str, wanted: str | None) -> str | None:
    return next((name for name in ([wanted] if wanted else _USUAL[what]) if name in names), None)


def list_tar(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List a tar file: of class folders, or of samples as WebDataset writes them: NAME.jpg with NAME.cls or NAME.json.

    Arrays in class folders are listed too; `Rows` drops them if `SourceOptions.extensions` lacks theirs.

    Raises UserError if a sample has no label, several images, or a name that WebDataset reads as another sample's.
    """
    listing = Listing()

    def unread(member: tarfile.TarInfo) -> None:
        if member.isdir():
            listing.others.append(f"{tidy(member.name)}/")
        elif is_image(PurePosixPath(member.name).name):
            listing.drop(_NO_FILE, tidy(member.name))

    members, labels = [], dict[Piece, str]()
    for one in read_members(file, archive, unread=unread):
        members.append(replace(one, name=tidy(one.name)))
        if (text := _label_in(file, archive, members[-1], columns)) is not None:
            labels[members[-1]] = text
    if labels:
        _add_samples(listing, archive, members, labels, columns)
        return listing
    for one in members:
        if is_image(one.name, ARRAYS):
            listing.add(one.name, None, one.start, one.size or 0)
        else:
            listing.others.append(one.name)
    return listing


def _label_in(file: BinaryIO, archive: str, member: Piece, columns: Columns) -> str | None:
    """Return the text of the label in a member of a tar file, if it is a file of a label."""
    size, suffix = member.size or 0, PurePosixPath(member.name).suffix.lower()
    if suffix == ".json" and size <= _MOST_OF_A_JSON:
        file.seek(member.start)
        return _json_label(file.read(size), archive, member.name, columns)
    if suffix != ".cls":
        return None
    file.seek(member.start)
    with suppress(UnicodeDecodeError):
        if size <= _MOST_OF_A_CLASS and (text := file.read(size).decode("utf-8-sig").strip()):
            return class_name(text)
    raise problem(archive, f"{member.name} holds no name of a class in UTF-8; write it again")


def _json_label(content: bytes, archive: str, name: str, columns: Columns) -> str | None:
    """Return the text of the label in a JSON file beside an image; None without one.

    Raises UserError if a folder may be the class instead.
    """
    values: object = None
    with suppress(ValueError):
        values = json.loads(content)
    if not isinstance(values, dict):
        return None
    names = columns.label if isinstance(columns.label, list) else [columns.label]
    if None in [_present(values, "label", one) for one in names]:
        return None
    keys = [column_of(values, "label", one, f"{archive}: {name}") for one in names]
    label, folders = label_text([*map(values.get, keys)], columns, f"{archive}: {name}"), PurePosixPath(name).parts[:-1]
    others = [one for one in folders if one.casefold() not in SPLIT_NAMES]
    if columns.label is None and others and label not in others:
        message = f"{name} has the {keys[0]} {label}, but lies in the folder {others[-1]}; set "
        raise problem(archive, f"{message}dataset.columns.label={keys[0]} to read it, or remove these files")
    return label


def _add_samples(
    listing: Listing, archive: str, members: Sequence[Piece], labels: Mapping[Piece, str], columns: Columns
) -> None:
    """Add the images of samples; members of one key that follow each other are a sample, as in WebDataset."""
    for key, sample in _samples(archive, members):
        images = {name: one for name, one in sample.items() if is_image(f"x.{name}")}
        if not images:
            listing.drop(_NO_IMAGE, key)
            continue
        texts = {name.rpartition(".")[2]: labels[one] for name, one in sample.items() if one in labels}
        chosen = [columns.image] if columns.image in images else [name for name in images if "." not in name]
        if not chosen and len(images) == len(texts) == 1:
            chosen = [*images]
        if len(chosen) != 1:
            names = [one.name for one in images.values()]
            shown = " and ".join([*names, *(one.name for one in sample.values() if one.name not in names)][:2])
            message = f"{shown} have the same key, {key}, since WebDataset ends it at the first dot; rename them, "
            raise problem(archive, f"{message}or set dataset.columns.image=FIELD, such as {next(iter(images))}")
        image = images[chosen[0]]
        if not texts:
            raise problem(archive, f"{image.name} has no label; add {key}.cls, or a label to {key}.json")
        listing.add(image.name, texts.get("cls", next(iter(texts.values()))), image.start, image.size or 0)
        for one in images.values():
            if one is not image:
                listing.drop(_OTHER_FIELD, one.name)


def _samples(archive: str, members: Sequence[Piece]) -> Iterator[tuple[str, dict[str, Piece]]]:
    """Yield key and members by field of the samples of a tar file."""
    named = [
        (match[1], match[2].lower(), one)
        for one in members
        if (match := _SAMPLE.fullmatch(one.name)) and not any(map(is_ignored, PurePosixPath(one.name).parts))
    ]
    for key, group in itertools.groupby(named, key=lambda one: one[0]):
        sample = dict[str, Piece]()
        for _, name, one in group:
            if name in sample:
                raise problem(archive, f"has {one.name} twice in one sample; remove one")
            sample[name] = one
        yield key, sample


def list_zip(file: BinaryIO, archive: str, columns: Columns) -> Listing:
    """List a zip file of class folders, as `list_tar`."""
    listing = Listing()
    try:
        with zipfile.ZipFile(BoundedReads(file, _MOST_OF_A_DIRECTORY)) as opened:
            members = opened.infolist()
    except zipfile.BadZipFile as error:
        raise problem(archive, f"is not a complete zip file ({error}); download it again") from None
    end = file.seek(0, io.SEEK_END)
    # note: some programs of Windows write backslashes
    of_windows = not any("/" in member.filename for member in members)
    for member in members:
        name = tidy(member.filename.replace("\\", "/") if of_windows else member.filename)
        if member.is_dir() or not is_image(PurePosixPath(name).name, ARRAYS):
            listing.others.append(name)
            continue
        # note: the upper half is the mode of a Unix file, or zero
        if (mode := member.external_attr >> 16) and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            listing.drop(_NO_FILE, name)
            continue
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise problem(archive, f"{member.filename} is encrypted, or not deflated; write another zip file")
        # note: the lengths of name and extra field are those beside the image, which may differ from the directory's
        file.seek(member.header_offset)
        lengths = np.frombuffer(file.read(_LOCAL_HEADER)[_LENGTHS], "<u2")
        start = member.header_offset + _LOCAL_HEADER + int(lengths.sum())
        deflated = member.compress_size if member.compress_type == zipfile.ZIP_DEFLATED else 0
        if start + member.compress_size > end or member.file_size >= _MOST_OF_A_FILE:
            raise problem(archive, f"states a wrong place or length of {member.filename}; download it again")
        listing.add(name, None, start, member.file_size, deflated)
    return listing
