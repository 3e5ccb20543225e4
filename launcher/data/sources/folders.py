"""Find the images in and below class folders, PATH/train/CLASS/*.jpg, of a disk or bucket; imports no torch."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from launcher.data.class_names import composed, in_order
from launcher.data.dropped import Drops, notes_on
from launcher.data.index import Archive, Images
from launcher.data.listing import entries, files_below, is_folder, unreadable_path
from launcher.data.sources.arrange import Rows, in_archives
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.layout import UNDIVIDED, Tree, Wanted, below, class_root, problem, split_of_wanted
from launcher.data.sources.path_tables import TABLES
from launcher.data.sources.source import Files
from launcher.data.workers import Report, quiet


def list_folders(files: Files, parts: Sequence[Wanted], options: SourceOptions, report: Report = quiet) -> list[Images]:
    """Find the images of class folders on this machine, sorted by class and name; a class may be empty.

    Links to images and classes are followed if they stay within the split's folder, with links=follow all that exist.

    Raises UserError if the folder, its classes or all images are missing or unreadable.
    """
    path, tree = Path(files.url), files.tree()
    if not is_folder(path):
        holds = "CLASS/*.jpg or" if "evaluation" in parts else "train/CLASS/*.jpg and"
        raise problem(path, f"not a folder; set a folder that holds {holds} val/CLASS/*.jpg")
    try:
        return [_on_disk(path, tree, wanted, options) for wanted in parts]
    except OSError as error:
        raise problem(path, unreadable_path(error)) from None


def _on_disk(path: Path, tree: Tree, wanted: Wanted, options: SourceOptions) -> Images:
    rows = Rows(wanted, options)
    place = class_root(tree, wanted, str(path), options.classes)
    root, shown = path / place, tree.folders(place)
    inside = None if options.links == "follow" else f"{root.resolve()}{os.sep}"
    refused, in_root = Drops(), Drops()
    names, beside = entries(root, inside, in_root, follow=True)
    classes = [name for name in names if name in shown]
    if not classes:
        message = f"{root} contains no class folders; expected {root}/CLASS/*.jpg"
        message += UNDIVIDED * (split_of_wanted(wanted) == "val")
        if table := next((name for name in beside if name.endswith(TABLES)), None):
            message += f"; to read its table, set dataset.path={root / table} dataset.val_split=0.1"
        raise problem(path, "; ".join([message, *notes_on(in_root)]))
    for file in itertools.chain(*(files_below(root, name, inside, refused) for name in classes), beside):
        rows.add_file(file)
    rows.drop_all(dict(sorted(refused.items())))
    rows.drop_all(in_root)
    return rows.images(str(path), in_order(map(composed, classes)), place=f"{place}/" if place else "")


def list_bucket(files: Files, parts: Sequence[Wanted], options: SourceOptions, report: Report) -> list[Images]:
    """Find the images of class folders in a bucket, as `list_folders`."""
    return [_in_bucket(files, wanted, options, report) for wanted in parts]


def _in_bucket(files: Files, wanted: Wanted, options: SourceOptions, report: Report) -> Images:
    path, what, tree = files.url, f"listing {wanted} images", files.tree()
    report(what, 0, 1)
    with files.reached():
        try:
            if not tree.folders(""):
                # note: a bucket that does not exist is only in the text
                files.sizes(path)
                raise FileNotFoundError
            root = class_root(tree, wanted, path, options.classes)
            sizes = files.sizes(below(path, root))
        except FileNotFoundError as error:
            reason = f" ({error})" if str(error) else ""
            message = f"has neither {split_of_wanted(wanted)}/CLASS/*.jpg nor archives (.tar, .zip, .parquet){reason}"
            raise problem(path, f"{message}; set another URL") from None
    report(what, 1, 1)
    rows = Rows(wanted, options)
    for name, size in sizes.items():
        rows.add_file(name, (0, 0, -1 if size is None else size, 0))
    order = in_order(map(composed, tree.folders(root)))
    return rows.images(path, order, in_archives([Archive(f"{below(path, root)}/")]))
