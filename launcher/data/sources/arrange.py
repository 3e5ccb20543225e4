"""Arrange the rows of archives and buckets as the images of a split: each is taken, or dropped for a reason."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np

from launcher.config.class_names import composed, in_order
from launcher.data.dropped import LOOSE, NO_IMAGE, REPLACED, Drops, drop
from launcher.data.folder import Folder, counted
from launcher.data.listing import EXTENSIONS, in_class, is_ignored, is_image
from launcher.data.sources.formats import Listing, SourceOptions
from launcher.data.sources.layout import VAL, Names, Wanted, class_root, join, problem, top_folder, visible
from launcher.data.sources.pieces import Stored

_ELSEWHERE = "images in folders of no split that is read"


@dataclass
class Rows:
    """The rows of one split: images by class and CLASS/NAME, with their places, and what is dropped.

    A place is the number of an archive and what a listing has: first byte, bytes, compressed bytes.
    """

    images: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    dropped: Drops = field(default_factory=dict)
    seen: int = 0

    def drop(self, reason: str, name: str, count: int = 1, *, seen: int = 1) -> None:
        """Count rows that are not read, `seen` now or before."""
        self.seen += count * seen
        drop(self.dropped, reason, name, count)

    def add(self, label: str, path: str, place: tuple[int, ...], mark: str = "") -> None:
        """Add an image as CLASS/NAME; with a mark beside one of an equal name, without it in its place."""
        self.seen += 1
        if (label, path) in self.images:
            if mark:
                path += mark
            else:
                self.drop(REPLACED, path, seen=0)
        self.images[label, path] = place

    def add_file(self, below: str, place: tuple[int, ...] = (), mark: str = "") -> None:
        """Add a file by its path below the folder of the classes, or drop it."""
        parts = below.split("/")
        if any(map(is_ignored, parts)):
            return
        if image := in_class(parts):
            # note: in one archive the last of equal names counts, as when unpacking
            label = composed(image[0])
            before = self.images.get((label, below), place)
            self.add(label, below, place, mark if before[0] != place[0] else "")
        elif is_image(parts[-1]):
            self.drop(LOOSE, below)
        elif len(parts) > 1 and parts[-1]:
            self.drop(NO_IMAGE, below)

    def add_table(self, number: int, file: str, listing: Listing, options: SourceOptions) -> None:
        """Add the rows of a table, which may have equal names.

        Raises UserError if a label is missing.
        """
        rows = zip(listing.names, listing.classes, listing.places, strict=True)
        for row, (name, label, place) in enumerate(rows):
            if options.lacks_label(label or ""):
                raise problem(file, f"row {row + 1} ({name}) has no label; add it, or remove the row")
            self.add(label or "", path_in_class(name, label or ""), (number, *place), f"#{number}-{row}")

    def folder(self, path: str, wanted: Wanted, order: Sequence[str], stored: Callable[[np.ndarray], Stored]) -> Folder:
        """Return the images, sorted by class and name; classes have the given order, or else that of their names.

        Raises UserError if there are none.
        """
        if not self.images:
            where = ".../CLASS/NAME" if wanted == "all" else f".../{wanted}/CLASS/NAME"
            raise problem(path, f"contains no images ({' '.join(EXTENSIONS)}) at {where}; set another file")
        classes = [*order] or in_order(name for name, _ in self.images)
        numbers = {name: number for number, name in enumerate(classes)}
        names = sorted(self.images, key=lambda name: (numbers[name[0]], name[1]))
        places = np.array([self.images[name] for name in names], np.int64)
        labels = np.array([numbers[name] for name, _ in names], np.int64)
        split = "val" if wanted in ("val", "evaluation") else "train"
        listed = [path for _, path in names]
        return counted(Folder(path, split, classes, listed, labels, stored(places), "", self.seen, self.dropped))


@dataclass(frozen=True)
class Archives:
    """The tar or zip files of a split, listed; with `is_divided` their names have the split already."""

    path: str
    names: Sequence[str]
    listings: Sequence[Listing]
    is_divided: bool

    def add_to(self, rows: Rows, wanted: Wanted, options: SourceOptions) -> list[str]:
        """Add the images of class folders, or samples with labels; return the classes of the folders.

        Raises UserError as `class_root`, and if only some archives have labels, or a label is missing.
        """
        samples, known = self._have_labels(), options.classes
        tree = Names(name for one in self.listings for name in [*one.names, *one.others])
        root = self._root(tree, wanted, known, samples=samples)
        top = top_folder(tree, known)
        prefix = "" if samples and root == top else f"{root}/" * bool(root)
        read = tuple(f"{join(top, name)}/" for name in _read_splits(tree, top))
        for number, row, file, label, place in self._rows():
            if file.startswith(prefix):
                mark = f"#{number}-{row}"
                if label is None:
                    rows.add_file(file.removeprefix(prefix), (number, *place), mark)
                elif options.lacks_label(label):
                    raise problem(self.names[number], f"{file} has no label; add it, or remove the sample")
                else:
                    rows.add(label, path_in_class(file, label), (number, *place), mark)
            elif wanted in ("train", "all") and not file.startswith(read) and is_image(PurePosixPath(file).name):
                rows.drop(_ELSEWHERE, file)
        # note: an archive of both splits is listed for each, and counts for training
        for listing in self.listings if self.is_divided or wanted != "val" else ():
            for reason, (count, name) in listing.dropped.items():
                rows.drop(reason, name, count)
        return [] if samples else in_order(map(composed, tree.folders(root) if root else visible(tree, root)))

    def _rows(self) -> Iterator[tuple[int, int, str, str | None, tuple[int, ...]]]:
        """Yield number of the archive and row, name, label and place of all files that are not ignored."""
        for number, one in enumerate(self.listings):
            images = zip(one.names, one.classes, one.places, strict=True)
            files = [*images, *((name, None, (0, 0, 0)) for name in one.others)]
            for row, (file, label, place) in enumerate(files):
                if not any(map(is_ignored, file.split("/"))):
                    yield number, row, file, label, place

    def _have_labels(self) -> bool:
        """Return whether the images are samples with labels; raises UserError if those of only some archives are."""
        pairs = zip(self.listings, self.names, strict=True)
        named = {one.classes[0] is not None: file for one, file in pairs if one.classes}
        if len(named) == 2:
            message = f"{named[False]} has no labels beside its images, but {named[True]} has; write all alike"
            raise problem(self.path, message)
        return True in named

    def _root(self, tree: Names, wanted: Wanted, known: Sequence[str], *, samples: bool) -> str:
        """Return the folder of the classes, or of the samples of a split."""
        top = top_folder(tree, known)
        folders = visible(tree, top)
        splits = [name for name in folders if name in ("train", *VAL)]
        # note: in an archive with the name of a split, folders beside one that looks like a split make it a class
        if self.is_divided and (not splits or (len(splits) < len(folders) and not samples)):
            return top
        return class_root(tree, wanted, self.path, known)


def _read_splits(tree: Names, top: str) -> list[str]:
    """Return the names of the folders that training and validation read."""
    folders = visible(tree, top)
    return [*(name for name in folders if name == "train"), *[name for name in VAL if name in folders][:1]]


def path_in_class(file: str, label: str) -> str:
    """Return CLASS/NAME of a labelled image: from the folder of its class on, or the class and the whole path."""
    parts = PurePosixPath(file).parts
    start = next((number for number, part in enumerate(parts[:-1], 1) if composed(part) == label), 0)
    return "/".join([label, *parts[start:]])
