"""Arrange the rows of archives and buckets as the images of a split: each is taken, or dropped for a reason."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from launcher.data.class_names import composed, in_order
from launcher.data.dropped import LOOSE, NO_IMAGE, REPLACED, Drops, drop, notes_on
from launcher.data.index import Archive, Images, Texts
from launcher.data.listing import EXTENSIONS, is_ignored, is_image
from launcher.data.sources.formats import Listing, SourceOptions
from launcher.data.sources.layout import (
    VAL,
    Tree,
    Wanted,
    below,
    class_root,
    join,
    problem,
    split_among,
    split_of_wanted,
    top_folder,
    tree_of,
)

_ELSEWHERE = "images in folders of no split that is read"


# Where an image is: number of an archive, first byte, bytes and compressed bytes; or what another reader needs.
Place = tuple[Any, ...]


class Rows:
    """The rows of one split: images by class and CLASS/NAME, with their places, and what is dropped."""

    def __init__(self, wanted: Wanted, options: SourceOptions | None = None) -> None:
        """options: extensions of images besides the usual ones, and the level of the classes, in class folders."""
        self.wanted, self._extensions = wanted, (*EXTENSIONS, *(options.extensions if options else ()))
        self._level = options.class_level if options else "first"
        # note: there may be millions, so most have one Python object as their name and class
        self._places: dict[str | tuple[str, str], Place] = {}
        self._dropped: Drops = {}
        self._seen = 0

    def drop(self, reason: str, name: str, count: int = 1) -> None:
        """Count rows that are not read."""
        self._seen += count
        drop(self._dropped, reason, name, count)

    def drop_all(self, drops: Drops) -> None:
        """Count rows that are not read, by reason."""
        for reason, one in drops.items():
            self.drop(reason, one.example, one.rows)

    def drop_unread(self, reason: str, names: Sequence[str]) -> None:
        """Count what no split reads: it counts for the training images."""
        if names and self.wanted in ("train", "all"):
            self.drop(reason, names[0], len(names))

    def place(self, label: str, path: str) -> Place | None:
        """Return where the image of a class and name is, if there is one."""
        return self._places.get(_key(label, path))

    def add(self, label: str, path: str, place: Place, mark: str = "") -> None:
        """Add an image as CLASS/NAME; with a mark beside one of an equal name, without it in its place."""
        self._seen += 1
        if (key := _key(label, path)) in self._places:
            if mark:
                key = _key(label, path + mark)
            else:
                drop(self._dropped, REPLACED, path)
        self._places[key] = place

    def add_file(self, path: str, place: Place = (), mark: str = "") -> None:
        """Add a file by its path below the folder of the classes, or drop it."""
        parts = path.split("/")
        if any(map(is_ignored, parts)):
            return
        if not path.lower().endswith(self._extensions):
            if len(parts) > 1 and parts[-1]:
                self.drop(NO_IMAGE, path)
        elif len(parts) == 1:
            self.drop(LOOSE, path)
        else:
            label = composed({"first": parts[0], "last": parts[-2], "path": "/".join(parts[:-1])}[self._level])
            before = self.place(label, path) if mark else None
            # note: in one archive the last of equal names counts, as when unpacking
            is_in_same = before is not None and before[0] == place[0]
            self.add(label, path, place, "" if is_in_same else mark)

    def add_table(self, number: int, file: str, listing: Listing, options: SourceOptions) -> None:
        """Add the rows of a table, which may have equal names.

        Raises UserError if a label is missing.
        """
        rows = zip(listing.names, listing.classes, listing.places, strict=True)
        for row, (name, label, place) in enumerate(rows):
            options.check_label(label or "", file, f"row {row + 1} ({name})")
            self.add(label or "", path_in_class(name, label or ""), (number, *place), f"#{number}-{row}")

    def images(
        self,
        path: str,
        order: Sequence[str],
        columns: Callable[[list[Place]], Mapping[str, Any]] = lambda places: {},
        place: str = "",
    ) -> Images:
        """Return the images, sorted by class and name; classes have the given order, others that of their names.

        Raises UserError if there are none, or something was dropped without a reason.
        """
        if not self._places:
            where = ".../CLASS/NAME" if self.wanted in ("all", "evaluation") else f".../{self.wanted}/CLASS/NAME"
            notes = "".join(f"; {note}" for note in notes_on(self._dropped))
            raise problem(
                path, f"contains no images ({' '.join(self._extensions)}) at {where}; set other images{notes}"
            )
        order = order if self._level == "first" else ()
        classes = [*order, *in_order({*map(_label, self._places)}.difference(order))]
        numbers = {name: number for number, name in enumerate(classes)}
        keys = sorted(self._places, key=_name)
        labels = np.fromiter((numbers[_label(key)] for key in keys), np.int64, len(keys))
        by_class = np.argsort(labels, kind="stable")
        names = Texts(_name(keys[number]) for number in by_class.tolist())
        places = [self._places[keys[number]] for number in by_class.tolist()]
        taken = len(names) + sum(one.rows for one in self._dropped.values())
        if taken != self._seen:
            message = f"{self._seen:,} files or rows were listed, but {taken:,} are taken or dropped with a reason; "
            raise problem(path, f"{message}this is an error of the program, please report it")
        root, split = below(path, place.rstrip("/")), split_of_wanted(self.wanted)
        own = {"place": place, "seen": taken, "dropped": self._dropped, **columns(places)}
        return Images(split, root, classes, names, labels[by_class], **own)


def _key(label: str, path: str) -> str | tuple[str, str]:
    """Return what identifies an image: its path, unless that does not start with the class."""
    return path if path.partition("/")[0] == label else (label, path)


def _label(key: str | tuple[str, str]) -> str:
    return key.partition("/")[0] if isinstance(key, str) else key[0]


def _name(key: str | tuple[str, str]) -> str:
    return key if isinstance(key, str) else key[1]


def add_archives(
    rows: Rows, path: str, archives: Mapping[str, Listing], options: SourceOptions, *, is_divided: bool
) -> list[str]:
    """Add the images of tar or zip files: of class folders, or samples with labels; return the classes of the folders.

    is_divided: the names of the files have the split already.

    Raises UserError as `class_root`, and if only some archives have labels, or a label is missing.
    """
    samples = _have_labels(path, archives)
    tree = tree_of(name for one in archives.values() for name in [*one.names, *one.others])
    top = top_folder(tree, options.classes)
    root = _root(tree, top, rows.wanted, path, options.classes, is_divided=is_divided, samples=samples)
    prefix = "" if samples and root == top else f"{root}/" * bool(root)
    folders = tree.folders(top)
    read = tuple(f"{join(top, name)}/" for one in ("train", "val") if (name := split_among(path, folders, one)))
    for number, (archive, listing) in enumerate(archives.items()):
        for row, (file, label, place) in enumerate(listing.files()):
            mark = f"#{number}-{row}"
            if any(map(is_ignored, file.split("/"))):
                continue
            if not file.startswith(prefix):
                if is_image(file) and not file.startswith(read):
                    rows.drop_unread(_ELSEWHERE, [file])
            elif label is None:
                rows.add_file(file.removeprefix(prefix), (number, *place), mark)
            else:
                options.check_label(label, archive, file, remove="sample")
                rows.add(label, path_in_class(file, label), (number, *place), mark)
        rows.drop_all(listing.dropped)
    return [] if samples else in_order(map(composed, tree.folders(root)))


def in_archives(archives: Sequence[Archive]) -> Callable[[list[Place]], Mapping[str, Any]]:
    """Return the columns of images whose places are in these archives, by number."""
    return lambda places: {"archives": archives, "places": np.array(places, np.int64)}


def _have_labels(path: str, archives: Mapping[str, Listing]) -> bool:
    """Return whether the images are samples with labels; raises UserError if those of only some archives are."""
    named = {one.classes[0] is not None: file for file, one in archives.items() if one.classes}
    if len(named) == 2:
        message = f"{named[False]} has no labels beside its images, but {named[True]} has; write all alike"
        raise problem(path, message)
    return True in named


def _root(
    tree: Tree, top: str, wanted: Wanted, path: str, known: Collection[str], *, is_divided: bool, samples: bool
) -> str:
    """Return the folder of the classes, or of the samples of a split."""
    folders = tree.folders(top)
    splits = [name for name in folders if name in ("train", *VAL)]
    # note: in an archive with the name of a split, folders beside one that looks like a split make it a class
    if is_divided and (not splits or (len(splits) < len(folders) and not samples)):
        return top
    return class_root(tree, wanted, path, known)


def path_in_class(file: str, label: str) -> str:
    """Return CLASS/NAME of a labelled image: from the folder of its class on, or the class and the whole path."""
    parts = PurePosixPath(file).parts
    start = next((number for number, part in enumerate(parts[:-1], 1) if composed(part) == label), 0)
    return "/".join([label, *parts[start:]])
