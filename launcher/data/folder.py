"""Images in and below class folders: `PATH/train/CLASS/*.jpg` and `PATH/val/CLASS/*.jpg`; imports no torch."""

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from launcher import randomness
from launcher.data.classes import places_in
from launcher.data.listing import EXTENSIONS, entries, files_below, is_file, is_folder, is_image, unreadable_path
from launcher.data.sources.pieces import Packed, Piece, Remote, Stored
from launcher.data.workers import in_threads
from launcher.errors import Problem, UserError, first_few

# The default folder of FFCV files, within the data set's folder.
FFCV = "ffcv"
# Names of the folder of validation images; the first that exists is read.
VAL = ("val", "valid", "validation", "test")
_FILES_A_TASK = 1000
_ONLY_PREPARED = "; for ImageNet's tar files, run train prepare and then train with dataloader=ffcv"
# Names of split folders in other spellings, which are no classes.
_SPLIT_NAMES = ("train", "training", *VAL, "testing")
_UNDIVIDED = "; to validate on a tenth of the images in train/CLASS/ or CLASS/, set dataset.val_split=0.1"


@dataclass(frozen=True)
class Folder:
    """The images of one split in the order of their names: `files` relative to `root`, `labels` int64 [N].

    `stored` is where images are that are not in class folders: `root` is the path in messages then, and `files` are
    names. `place` is the prefix of `root` within the data set's folder, ending in a slash, or empty. `irregular` counts
    links that are not followed, pipes, sockets and devices; `others` counts files without an image extension, by
    extension; `loose` counts images in `root` itself, which have no class.
    """

    root: str
    split: str
    classes: list[str]
    files: Sequence[str]
    labels: np.ndarray
    stored: Stored | None = None
    place: str = ""
    irregular: int = 0
    others: Counter[str] = field(default_factory=Counter)
    loose: int = 0

    def piece(self, number: int) -> Piece:
        """Return where an image is."""
        name = os.fsdecode(self.files[number])
        return Piece(name, f"{self.root}/{name}") if self.stored is None else self.stored.piece(name, number)


def scan_undivided(path: Path, fraction: float) -> Folder:
    """List the images that `dataset.val_split` divides; classes may be in `path` itself.

    Raises UserError if a folder, its classes or all images are missing or unreadable, or val/ exists.
    """
    folders = [name for name in VAL if is_folder(path / name)]
    # note: images to test on may lie beside those that are divided
    if folders not in ([], ["test"]):
        message = f"{path / folders[0]} holds validation images already; remove the key or move the folder"
        raise UserError(Problem(message, "dataset.val_split", fraction))
    if folders or is_folder(path / "train") or not is_folder(path):
        return scan(path, "train")
    if names := _split_folders(path):
        message = f"holds {first_few(names)}, which are splits, not classes; rename them to train and val"
        raise problem(path, message)
    return _without_ffcv(_scan(path, path, "train"))


def same_classes(train: Folder, val: Folder) -> tuple[Folder, Folder]:
    """Relabel both splits by their sorted common classes, so that a class missing in one does not shift its labels.

    Equal lists of classes stay in their order.
    """
    if train.classes == val.classes:
        return train, val
    classes = sorted({*train.classes, *val.classes})
    return numbered(train, classes), numbered(val, classes)


def numbered(split: Folder, classes: list[str]) -> Folder:
    """Relabel a split by the positions of other classes; -1 for a class not among them."""
    return replace(split, classes=classes, labels=places_in(split.classes, classes)[split.labels])


def scan(path: Path, split: str) -> Folder:
    """List the images in and below the class folders of `PATH/SPLIT`, sorted by class and name; a class may be empty.

    Links to images and classes are followed if they stay within `PATH/SPLIT`, links to folders below a class are not.

    Raises UserError if the folder, its classes or all images are missing or unreadable.
    """
    root = split_folder(path, split)
    if not is_folder(path):
        raise problem(path, "not a folder; set a folder that holds train/CLASS/*.jpg and val/CLASS/*.jpg")
    if not is_folder(root):
        raise problem(path, f"has no {split}/ folder; expected {root}/CLASS/*.jpg{_remedy(path, split)}")
    return _scan(path, root, split)


def _remedy(path: Path, split: str) -> str:
    """Return what to do about a missing split, by the folders that exist."""
    if any(path.glob(f"*{split}*.tar")):
        return _ONLY_PREPARED
    if split == "train" and (names := [name for name in _split_folders(path) if name.casefold().startswith(split)]):
        return f"; rename {names[0]} to train"
    if split == "train" and (inner := sorted(path.glob("*/train/"))):
        return f"; set dataset.path={inner[0].parent}"
    return "" if any(is_folder(path / name) for name in VAL) else _UNDIVIDED


def _split_folders(path: Path) -> list[str]:
    """Return the folders in `path` with names of splits in any spelling."""
    return sorted(one.name for one in path.glob("*/") if one.name.casefold() in _SPLIT_NAMES)


def split_folder(path: Path, split: str) -> Path:
    """Return the folder of a split's images, which may be missing."""
    names = VAL if split == "val" else (split,)
    return next((path / name for name in names if is_folder(path / name)), path / split)


def scan_evaluation(path: Path) -> Folder:
    """List the images of a folder to evaluate: of `PATH/val`, or of class folders in `PATH` itself.

    Raises UserError if the folder, its classes or all images are missing or unreadable.
    """
    if not is_folder(path):
        raise problem(path, "not a folder; set a folder that holds CLASS/*.jpg or val/CLASS/*.jpg")
    return scan(path, "val") if is_folder(split_folder(path, "val")) else _without_ffcv(_scan(path, path, "val"))


def sizes(folder: Folder) -> Sequence[int | None]:
    """Return the bytes of each image, None if unknown.

    Raises UserError if an image no longer exists.
    """
    if isinstance(folder.stored, Packed):
        return folder.stored.places[:, 2].tolist()  # type: ignore[no-any-return]
    if isinstance(folder.stored, Remote):
        return folder.stored.sizes.tolist()  # type: ignore[no-any-return]
    paths = folder.stored.paths.tolist() if folder.stored else [f"{folder.root}/{file}" for file in folder.files]
    try:
        return [facts.st_size for facts in in_threads(os.stat, paths, _FILES_A_TASK)]
    except OSError as error:
        raise problem(folder.root.removesuffix(f"/{folder.place.rstrip('/')}"), unreadable_path(error)) from None


def problem(path: Path | str, message: str) -> UserError:
    """Return an error about `dataset.path`."""
    return UserError(Problem(message, "dataset.path", path))


def is_remote(path: str) -> bool:
    """Return whether a data set's path is a URL, such as that of a bucket."""
    return "://" in path


def is_no_folder(path: str) -> bool:
    """Return whether no files can be written into a data set's path: a URL, or one file."""
    return is_remote(path) or path.endswith(".tar") or is_file(Path(path))


def _scan(path: Path, root: Path, split: str) -> Folder:
    try:
        return _listed(path, root, split)
    except OSError as error:
        raise problem(path, unreadable_path(error)) from None


def _listed(path: Path, root: Path, split: str) -> Folder:
    inside = f"{root.resolve()}{os.sep}"
    classes, loose, skipped = entries(root, inside, follow=True)
    if not classes:
        message = f"{root} contains no class folders; expected {root}/CLASS/*.jpg"
        raise problem(path, "; ".join([message + _UNDIVIDED * (split == "val"), *_irregular_note(skipped)]))
    files: list[str] = []
    labels: list[int] = []
    others: Counter[str] = Counter()
    for label, name in enumerate(classes):
        names, links = files_below(root, name, inside)
        images = [file for file in names if is_image(os.path.basename(file))]  # noqa: PTH119 - the faster one
        files += images
        labels += [label] * len(images)
        skipped += links
        if len(images) < len(names):
            others.update(Path(file).suffix.lower() or Path(file).name for file in {*names}.difference(images))
    if not files:
        message = f"the class folders of {root} contain no images ({' '.join(EXTENSIONS)}); add some"
        raise problem(path, "; ".join([message, *_others_note(others), *_irregular_note(skipped)]))
    place = "" if root == path else f"{root.name}/"
    numbers = np.array(labels, dtype=np.int64)
    return Folder(str(root), split, classes, files, numbers, None, place, skipped, others, sum(map(is_image, loose)))


def skipped_notes(folders: Sequence[Folder]) -> list[str]:
    """Return notes on the files in and beside the class folders that are skipped."""
    notes = _others_note(sum((folder.others for folder in folders), Counter[str]()))
    if loose := sum(folder.loose for folder in folders):
        notes.append(f"skipping {loose:,} images that lie beside the class folders, not in one")
    return notes + _irregular_note(sum(folder.irregular for folder in folders))


def _others_note(others: Counter[str]) -> list[str]:
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(5))
    return [f"skipping {others.total():,} files in class folders without an image extension: {kinds}"] * bool(others)


def _irregular_note(count: int) -> list[str]:
    what = "broken links, links out of the split's folder or to a folder below a class, pipes or devices"
    return [f"skipping {count:,} entries: {what}"] * bool(count)


def _without_ffcv(folder: Folder) -> Folder:
    """Remove the folder of FFCV files from the classes."""
    images = numbered(folder, [name for name in folder.classes if name != FFCV])
    return folder if (images.labels < 0).any() else images


def without(folder: Folder, skipped: Collection[str]) -> Folder:
    """Remove images, given relative to the data set's folder; classes stay."""
    if not skipped:
        return folder
    return part(folder, np.array([f"{folder.place}{file}" not in skipped for file in folder.files]))


def divided(whole: Folder, fraction: float, seed: int, *, by_class: bool = True) -> tuple[Folder, Folder]:
    """Split off a fraction of each class, or of all images, for validation: at least one image, but never all.

    The choice depends on the seed and the file names, so adding or removing an image changes little.
    """
    names = np.array([zlib.crc32(os.fsencode(file)) for file in whole.files], np.int64)
    chances = randomness.uniforms(seed, "val_split", 0, names, 1)[:, 0]
    in_val = np.zeros(len(names), bool)
    bounds = np.searchsorted(whole.labels, np.arange(len(whole.classes) + 1)).tolist() if by_class else [0, len(names)]
    for first, beyond in itertools.pairwise(bounds):
        count = min(max(1, round(fraction * (beyond - first))), beyond - first - 1)
        in_val[first + np.argsort(chances[first:beyond], kind="stable")[: max(0, count)]] = True
    return part(whole, ~in_val), replace(part(whole, in_val), split="val")


def part(whole: Folder, chosen: np.ndarray) -> Folder:
    """Select the images where `chosen`, bool [N], is true; classes stay."""
    files = [whole.files[number] for number in np.flatnonzero(chosen).tolist()]
    stored = whole.stored.part(chosen) if whole.stored is not None else None
    return replace(whole, files=files, labels=whole.labels[chosen], stored=stored)
