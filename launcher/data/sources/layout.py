"""Decide which folders of a data set are its splits and classes, equally for disks, archives and buckets."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal

from launcher.data.listing import is_file, is_ignored, is_image
from launcher.errors import Problem, UserError, first_few

# Names of the folder of validation images; the first that exists is read.
VAL = ("val", "valid", "validation", "test")
# The default folder of FFCV files, within the data set's folder.
FFCV = "ffcv"
# Names of split folders in other spellings, which are no classes.
SPLIT_NAMES = ("train", "training", *VAL, "testing")
# Files of a run folder.
_RUN = ("config.yaml", "metrics.jsonl")
UNDIVIDED = "; to validate on a tenth of the images in train/CLASS/ or CLASS/, set dataset.val_split=0.1"

# The key that divides all images, in errors; `dataset.folds` may do so too.
DIVIDED = "dataset.val_split"

# A split, `all` images that `dataset.val_split` divides, or those of an `evaluation`: of `val`, or of all classes.
Wanted = Literal["train", "val", "all", "evaluation"]


def split_of_wanted(wanted: Wanted) -> str:
    """Return the name of the split that images are for."""
    return "val" if wanted in ("val", "evaluation") else "train"


def problem(path: Path | str, message: str) -> UserError:
    """Return an error about `dataset.path`."""
    return UserError(Problem(message, "dataset.path", path))


@contextmanager
def readable(path: str, remedy: str) -> Iterator[None]:
    """Raise the errors of libraries that read a file, which are arbitrary, as one about it with a remedy."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise problem(path, f"cannot be read ({type(error).__name__}: {error}); {remedy}") from None


def is_remote(path: str) -> bool:
    """Return whether a data set's path is a URL, such as that of a bucket."""
    return "://" in path


def is_no_folder(path: str) -> bool:
    """Return whether no files can be written into a data set's path: a URL, or one file."""
    return is_remote(path) or path.endswith(".tar") or is_file(Path(path))


class Tree:
    """The folders of a data set, as paths below it; its own is an empty text.

    entries: return the names in a folder, and whether each is a folder.
    """

    def __init__(self, entries: Callable[[str], Iterable[tuple[str, bool]]]):
        self._entries = entries

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders in a folder, sorted, without those of FFCV files, runs and other programs."""
        names = sorted(name for name, is_folder in self._entries(path) if is_folder and not is_ignored(name))
        names = [name for name in names if not self._has_runs(join(path, name))]
        return [
            name for name in names if name != FFCV or self.has_images(below := join(path, name)) or self.folders(below)
        ]

    def _has_runs(self, path: str) -> bool:
        """Return whether the first folder or image in a folder is a run of this program; reads no more entries."""
        first = next(((name, inner) for name, inner in self._entries(path) if inner or is_image(name)), ("", False))
        return first[1] and {*_RUN}.issubset(name for name, _ in self._entries(join(path, first[0])))

    def has_images(self, path: str) -> bool:
        """Return whether images lie in a folder itself."""
        return any(not is_folder and is_image(name) for name, is_folder in self._entries(path))


def tree_of(names: Iterable[str]) -> Tree:
    """Return the tree of names of files, and of folders, which end with a slash."""
    one_in: dict[str, str] = {}
    for path in names:
        folder, _, name = path.rpartition("/")
        # note: one image of a folder is enough
        if folder not in one_in or is_image(name):
            one_in[folder] = name
    inside: dict[str, dict[str, bool]] = {"": {}}

    def add(path: str) -> None:
        if path not in inside:
            parent, _, name = path.rpartition("/")
            add(parent)
            inside[parent][name], inside[path] = True, {}

    for folder, name in one_in.items():
        add(folder)
        inside[folder].setdefault(name, False)
    return Tree(lambda path: inside[path].items())


def below(path: str, name: str) -> str:
    """Return the path or URL of a name in a folder, or of the folder itself for an empty name."""
    return f"{path.rstrip('/')}/{name}" if name else path


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
    while len(folders := tree.folders(path)) == 1 and not tree.has_images(path):
        inner = join(path, folders[0])
        is_named = folders[0].casefold() in SPLIT_NAMES or folders[0] in classes
        if is_named or tree.has_images(inner) or not tree.folders(inner):
            break
        path = inner
    return path


def split_among(path: str, present: Collection[str], wanted: Wanted) -> str | None:
    """Return which of the splits that are present is read; None if it is missing.

    Of all images it is that to train on, else an empty text: those of no split. Raises UserError if validation images
    exist besides those to divide; some to test on may be there.
    """
    if wanted == "all":
        if held_out := [name for name in VAL[:-1] if name in present]:
            message = f"{path} holds validation images already ({held_out[0]}); remove the key, or move them"
            raise UserError(Problem(message, DIVIDED, None))
        return "train" if "train" in present else ""
    names = VAL if split_of_wanted(wanted) == "val" else ("train",)
    return next((name for name in names if name in present), None)


def of_split(path: str, splits: Mapping[str, str], wanted: Wanted) -> list[str]:
    """Return the files of a split by their names; raises UserError as `split_among`, and if it is missing."""
    name = split_among(path, splits.values(), wanted)
    if chosen := [file for file in splits if splits[file] == name]:
        return chosen
    split = split_of_wanted(wanted)
    message = f"has neither a {split}/ folder nor archives or a table of the {split} split; add one"
    raise problem(path, message + (", or set dataset.val_split=0.1" if split == "val" else ""))


def class_root(tree: Tree, wanted: Wanted, path: str, classes: Collection[str] = ()) -> str:
    """Return the folder whose folders are the classes; `path` is the data set's, for messages.

    Raises UserError as `split_among`, and if a split is missing or may be a class.
    """
    top = top_folder(tree, classes)
    folders = tree.folders(top)
    name, split = split_among(below(path, top), folders, wanted), split_of_wanted(wanted)
    if wanted == "all" and (name or "test" not in folders):
        return _undivided(tree, top, folders, path)
    if name or wanted == "evaluation":
        return join(top, name) if name else top
    message = f"has no {split}/ folder; expected {below(path, join(top, split))}/CLASS/*.jpg"
    raise problem(path, message + _remedy(tree, top, split, path, folders))


def unread_folders(tree: Tree, root: str) -> list[str]:
    """Return the folders of images beside the folder of a split, that are no splits, as paths."""
    parent, _, name = root.rpartition("/")
    return [join(parent, one) for one in _not_splits(tree, parent)] if name.casefold() in SPLIT_NAMES else []


def _not_splits(tree: Tree, top: str) -> list[str]:
    """Return the folders of images in a folder without the name of a split."""
    others = [name for name in tree.folders(top) if name.casefold() not in SPLIT_NAMES]
    return [name for name in others if _holds_images(tree, join(top, name))]


def _holds_images(tree: Tree, path: str) -> bool:
    return tree.has_images(path) or any(_holds_images(tree, join(path, name)) for name in tree.folders(path))


def _undivided(tree: Tree, top: str, folders: list[str], path: str) -> str:
    train, others = join(top, "train"), _not_splits(tree, top)
    if "train" not in folders:
        if names := [name for name in folders if name.casefold() in SPLIT_NAMES]:
            message = f"holds {first_few(names)}, which are splits, not classes; rename them to train and val"
            raise problem(path, message)
        return top
    # note: images to test on may lie beside those that are divided
    if not others or "test" in folders:
        return train
    if not tree.folders(train):
        return top
    message = f"train/ may be a split or a class, since {first_few(others)} lie beside it; "
    message += f"set dataset.path={below(path, train)}, or remove train/ or the others"
    raise problem(path, message)


def _remedy(tree: Tree, top: str, split: str, path: str, folders: list[str]) -> str:
    """Return what to do about a missing split, by the folders that exist."""
    of_split = ("train", "training") if split == "train" else (*VAL, "testing")
    if similar := [name for name in folders if name.casefold() in of_split and name not in VAL]:
        return f"; rename {similar[0]} to {split}"
    inner = [one for one in (join(top, name) for name in folders) if "train" in tree.folders(one)]
    if split == "train" and inner:
        return f"; set dataset.path={below(path, inner[0])}"
    return UNDIVIDED if {*VAL}.isdisjoint(folders) else ""
