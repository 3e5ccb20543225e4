"""Decide which folders of a data set are its splits and classes, equally for disks, archives and buckets."""

import itertools
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from launcher.data.listing import is_file, is_ignored, is_image
from launcher.errors import Problem, UserError, first_few

# Names of the folder of validation images; the first that exists is read.
VAL = ("val", "valid", "validation", "test")
# The default folder of FFCV files, within the data set's folder.
FFCV = "ffcv"
# Names of split folders in other spellings, which are no classes.
SPLIT_NAMES = ("train", "training", *VAL, "testing")
UNDIVIDED = "; to validate on a tenth of the images in train/CLASS/ or CLASS/, set dataset.val_split=0.1"

# A split, `all` images that `dataset.val_split` divides, or those of an `evaluation`: of `val`, or of all classes.
Wanted = Literal["train", "val", "all", "evaluation"]


def problem(path: Path | str, message: str) -> UserError:
    """Return an error about `dataset.path`."""
    return UserError(Problem(message, "dataset.path", path))


def is_remote(path: str) -> bool:
    """Return whether a data set's path is a URL, such as that of a bucket."""
    return "://" in path


def is_no_folder(path: str) -> bool:
    """Return whether no files can be written into a data set's path: a URL, or one file."""
    return is_remote(path) or path.endswith(".tar") or is_file(Path(path))


class Tree(Protocol):
    """The folders of a data set, as paths below it; its own is an empty text."""

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder, sorted, without those that other programs left."""

    def has_images(self, path: str) -> bool:
        """Return whether images lie in a folder itself."""


class Names:
    """The tree of a list of names: files, and folders that end with a slash."""

    def __init__(self, names: Iterable[str]):
        self._folders: dict[str, set[str]] = {"": set()}
        self._with_images: set[str] = set()
        for name in names:
            parent, _, file = name.rpartition("/")
            parts = parent.split("/") if parent else []
            seen = [*itertools.takewhile(lambda part: not is_ignored(part), parts)]
            self._add("/".join(seen))
            if is_image(file) and seen == parts:
                self._with_images.add(parent)

    def _add(self, path: str) -> None:
        if path not in self._folders:
            parent, _, name = path.rpartition("/")
            self._add(parent)
            self._folders[path] = set()
            self._folders[parent].add(name)

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        return sorted(self._folders.get(path, ()))

    def has_images(self, path: str) -> bool:
        """Return whether images lie in a folder itself."""
        return path in self._with_images


def join(path: str, name: str) -> str:
    """Return the path of a name in a folder of a tree."""
    return f"{path}/{name}" if path else name


def tidy(name: str) -> str:
    """Return a name in an archive without dots and slashes at its start; that of a folder ends with a slash."""
    parts = PurePosixPath(name).parts
    path = "/".join(parts[1:] if parts[:1] == ("/",) else parts)
    return path + "/" * (name.endswith("/") and path != "")


def top_folder(tree: Tree, classes: Collection[str] = ()) -> str:
    """Return the folder that holds the splits or classes: the data set's own, or the only one in it.

    An only folder with images in it, or with the name of a split or one of these `classes`, is none.
    """
    path = ""
    while True:
        folders = visible(tree, path)
        if len(folders) != 1 or tree.has_images(path):
            return path
        below = join(path, folders[0])
        if folders[0].casefold() in SPLIT_NAMES or folders[0] in classes:
            return path
        if tree.has_images(below) or not visible(tree, below):
            return path
        path = below


def class_root(tree: Tree, wanted: Wanted, path: str, classes: Collection[str] = ()) -> str:
    """Return the folder whose folders are the classes; `path` is the data set's, for messages.

    Raises UserError if a split is missing, may be a class, or validation images exist besides those to divide.
    """
    top = top_folder(tree, classes)
    folders = visible(tree, top)
    held_out = [name for name in VAL if name in folders]
    if wanted == "evaluation":
        return join(top, held_out[0]) if held_out else top
    if wanted == "all":
        return _undivided(tree, top, folders, held_out, path)
    names = held_out[:1] if wanted == "val" else [name for name in folders if name == "train"]
    if names:
        return join(top, names[0])
    message = f"has no {wanted}/ folder; expected {_shown(path, join(top, wanted))}/CLASS/*.jpg"
    raise UserError(Problem(message + _remedy(tree, top, wanted, path, folders), "dataset.path", path))


def unread_folders(tree: Tree, root: str) -> list[str]:
    """Return the folders of images beside the folder of a split, that are no splits, as paths."""
    parent, _, name = root.rpartition("/")
    return [join(parent, one) for one in _not_splits(tree, parent)] if name.casefold() in SPLIT_NAMES else []


def _not_splits(tree: Tree, top: str) -> list[str]:
    """Return the folders of images in a folder without the name of a split."""
    others = [name for name in visible(tree, top) if name.casefold() not in SPLIT_NAMES]
    return [name for name in others if _holds_images(tree, join(top, name))]


def _holds_images(tree: Tree, path: str) -> bool:
    return tree.has_images(path) or any(_holds_images(tree, join(path, name)) for name in tree.folders(path))


def visible(tree: Tree, path: str) -> list[str]:
    """Return the names of the folders in a folder, without that of FFCV files."""
    return [
        name
        for name in tree.folders(path)
        if name != FFCV or tree.has_images(join(path, name)) or tree.folders(join(path, name))
    ]


def _undivided(tree: Tree, top: str, folders: list[str], held_out: list[str], path: str) -> str:
    # note: images to test on may lie beside those that are divided
    if held_out not in ([], ["test"]):
        message = f"{_shown(path, join(top, held_out[0]))} holds validation images already"
        raise UserError(Problem(f"{message}; remove dataset.val_split or move the folder", "dataset.path", path))
    train, others = join(top, "train"), _not_splits(tree, top)
    if "train" in folders:
        if not others or held_out:
            return train
        if not tree.folders(train):
            return top
        message = f"train/ may be a split or a class, since {first_few(others)} lie beside it; "
        message += f"set dataset.path={_shown(path, train)}, or remove train/ or the others"
        raise UserError(Problem(message, "dataset.path", path))
    if held_out:
        message = f"has no train/ folder; expected {_shown(path, train)}/CLASS/*.jpg"
        raise UserError(Problem(message, "dataset.path", path))
    if names := [name for name in folders if name.casefold() in SPLIT_NAMES]:
        message = f"holds {first_few(names)}, which are splits, not classes; rename them to train and val"
        raise UserError(Problem(message, "dataset.path", path))
    return top


def _remedy(tree: Tree, top: str, split: str, path: str, folders: list[str]) -> str:
    """Return what to do about a missing split, by the folders that exist."""
    of_train = ("train", "training")
    similar = [name for name in folders if name.casefold() in SPLIT_NAMES and name not in VAL]
    if similar := [name for name in similar if (name.casefold() in of_train) == (split == "train")]:
        return f"; rename {similar[0]} to {split}"
    inner = [one for one in (join(top, name) for name in folders) if "train" in tree.folders(one)]
    if split == "train" and inner:
        return f"; set dataset.path={_shown(path, inner[0])}"
    return "" if any(name in VAL for name in folders) else UNDIVIDED


def _shown(path: str, folder: str) -> str:
    return f"{path.rstrip('/')}/{folder}" if folder else path
