"""Files in folders: images by their extensions, without what other programs leave there; imports no torch."""

import os
from collections.abc import Iterable
from pathlib import Path

from launcher.data.dropped import BROKEN, LINKS, NO_IMAGE, Drops, drop
from launcher.errors import UserError

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".avif", ".heic", ".heif"),
)
# Left by other programs: macOS's zip files, Synology's and QNAP's disks, volumes of ext4 and Windows, Python.
_IGNORED = (
    *("__MACOSX", "@eaDir", "#recycle", "@Recycle", "lost+found", "$RECYCLE.BIN", "System Volume Information"),
    "__pycache__",
)


def image_files(names: Iterable[str], more: tuple[str, ...] = ()) -> tuple[list[str], Drops]:
    """Return files by name and, for folders, the images in and below them, sorted; and what these hold besides.

    more: extensions of images besides the usual ones.

    Raises UserError if a folder cannot be read, or contains no images.
    """
    images: list[str] = []
    drops: Drops = {}
    for name in names:
        if not is_folder(Path(name)):
            images.append(name)
            continue
        try:
            files = files_below(Path(), name.rstrip("/") or "/", None, drops)
        except OSError as error:
            raise UserError(unreadable_path(error)) from None
        inside = [file for file in files if is_image(file, more)]
        if not inside:
            raise UserError(f"{name} contains no images ({' '.join((*EXTENSIONS, *more))}); type another folder")
        images += inside
        for file in files:
            if not is_image(file, more):
                drop(drops, NO_IMAGE, file)
    return images, drops


def unreadable_path(error: OSError) -> str:
    """Return the message for a file or folder that cannot be read."""
    remedy = "restore it" if isinstance(error, FileNotFoundError) else "check its permissions"
    return f"{error.filename} cannot be read: {error.strerror}; {remedy}"


def is_folder(path: Path) -> bool:
    """Return whether a folder exists and is accessible; False for names that are too long."""
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: Path) -> bool:
    """Return whether a file exists and is accessible; False for names that are too long."""
    return os.path.isfile(path)  # noqa: PTH113


def files_below(root: Path, name: str, inside: str | None, drops: Drops) -> list[str]:
    """Return the files in and below a class folder as sorted paths within `root`; counts the others as `entries`."""
    files: list[str] = []
    folders: list[tuple[str, tuple[str, ...]]] = [(name, (os.path.realpath(root / name),))]
    while folders:
        folder, above = folders.pop()
        inner, names = entries(root / folder, inside, drops, follow=inside is None)
        for one in reversed(inner):
            # note: a link to a folder above it would be read forever
            if (place := os.path.realpath(root / folder / one)) not in above:
                folders.append((f"{folder}/{one}", (*above, place)))
            else:
                drop(drops, BROKEN, str(root / folder / one))
        files += [f"{folder}/{one}" for one in names]
    return sorted(files)


def entries(folder: Path, inside: str | None, drops: Drops, *, follow: bool) -> tuple[list[str], list[str]]:
    """Return the sorted names of folders and files in a folder, and count those that are not read.

    These are links that leave `inside`, unless it is None, without `follow` also links to folders, and broken links,
    pipes, sockets and devices.
    """
    folders: list[str] = []
    files: list[str] = []
    with os.scandir(folder) as listed:
        for entry in sorted(listed, key=lambda entry: entry.name):
            if is_ignored(entry.name):
                continue
            # note: realpath also resolves broken and circular links
            target = os.path.realpath(entry) if entry.is_symlink() else None
            if target and not os.path.exists(target):  # noqa: PTH110 - of a million files
                drop(drops, BROKEN, entry.path)
            elif target and inside and not f"{target}{os.sep}".startswith(inside):
                drop(drops, LINKS, entry.path)
            elif entry.is_file():
                files.append(entry.name)
            elif entry.is_dir(follow_symlinks=follow):
                folders.append(entry.name)
            else:
                drop(drops, LINKS if entry.is_dir() else BROKEN, entry.path)
    return folders, files


def is_ignored(name: str) -> bool:
    """Return whether other programs left a file or folder, or it is hidden."""
    return name.startswith(".") or name in _IGNORED


def is_image(name: str, more: tuple[str, ...] = ()) -> bool:
    """Return whether a path ends in an image's extension, or one of `more`."""
    return name.lower().endswith((*EXTENSIONS, *more)) and not os.path.basename(name).startswith(".")  # noqa: PTH119
