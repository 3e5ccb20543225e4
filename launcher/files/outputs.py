"""The one rule for the outputs of all commands: they replace only what this program has written."""

import hashlib
import json
import os
import zlib
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from launcher.errors import Problem, UserError
from launcher.files.disk import reason

# What is near the start or the end of the files that this program writes.
_MARKS = (
    b'<meta name="generator" content="train">',
    b"tEXtSoftware\0train",
    b"/Creator (train)",
    b"<dc:title>train</dc:title>",
    b'"file": "mlperf.py"',
)
# The first bytes of its tables.
_STARTS = (
    b"file,label,loss,rank,",
    *(b"name,images,", b"name,pixels,iou,", b"name,mae,rmse,", b"name,tokens,loss,"),
)
_MARKED_BYTES = 2000
_DIGEST = "<!-- written by train, digest {} -->\n"
# The file that every export has; its values have the version that wrote it.
_CARD = "model_card.json"


def image_options(suffix: str = ".png") -> dict[str, Any]:
    """Return the options of Matplotlib's `savefig` for a format, with the mark of this program."""
    key = {".png": "Software", ".svg": "Title"}.get(suffix, "Creator")
    metadata = {key: "train"} if suffix in (".png", ".svg", ".pdf") else None
    # note: a temporary name has no suffix for the format
    return {"format": suffix[1:], "metadata": metadata}


def marked(drawn: bytes, suffix: str) -> bytes:
    """Return a drawing of another library than Matplotlib, PNG, SVG or PDF, with the mark of this program."""
    if suffix == ".png":
        chunk = b"tEXt" + b"Software\0train"
        text = (len(chunk) - 4).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big")
        # note: the signature and the header are 33 bytes
        return drawn[:33] + text + drawn[33:]
    # note: what follows the end of a PDF is a comment
    return drawn + (b"\n%/Creator (train)\n" if suffix == ".pdf" else b"\n<!-- <dc:title>train</dc:title> -->\n")


def with_digest(text: str) -> str:
    """Return a text that users may edit with a last line that is true until they do."""
    return text + _DIGEST.format(_digest(text))


def check_file(path: Path, option: str = "--output") -> None:
    """Check before the work that a file can be written: its folder exists, and it replaces no file of another program.

    Raises UserError, with the option of its path, if not.
    """
    if not _has_folder(path):
        raise UserError(Problem("its folder does not exist; create it first", option, path))
    check_replaced(path, option)


def _has_folder(path: Path) -> bool:
    try:
        return path.absolute().parent.is_dir()
    except OSError:
        # note: such as a name that is too long
        return False


def check_replaced(path: Path, option: str = "--output") -> None:
    """Check that a path is free, or has a file that this program has written.

    Raises UserError if it is no regular file, such as a device or a link, or the file has no mark of this program.
    """
    try:
        if not os.path.lexists(path):
            return
        if not S_ISREG(path.lstat().st_mode):
            raise UserError(Problem("is not a regular file, and is never replaced; set another name", option, path))
        if not _is_ours(path):
            raise UserError(Problem("exists and is no output of this version of train; set another name", option, path))
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {reason(error)}", option, path)) from None


def check_folder(folder: Path) -> None:
    """Check before the work that a folder is missing, empty, or an earlier export, which a new one may replace.

    Raises UserError if not, or if it has anything but regular files and folders.
    """
    try:
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            raise UserError(Problem("is not a folder; set another folder", "--output", folder))
        files = [path for path in folder.iterdir() if not path.name.startswith(".export")]
        for path in files:
            if not (S_ISREG(mode := path.lstat().st_mode) or S_ISDIR(mode)):
                message = f"has {path.name}, which is not a regular file, and is never replaced; set another folder"
                raise UserError(Problem(message, "--output", folder))
        if files and not _is_export(folder):
            message = f"has files that train has not written, such as {files[0].name}; set another folder"
            raise UserError(Problem(message, "--output", folder))
    except OSError as error:
        raise UserError(Problem(f"cannot be read: {reason(error)}", "--output", folder)) from None


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        content = file.read(_MARKED_BYTES)
        # note: a PDF has it at its end
        file.seek(max(0, path.stat().st_size - _MARKED_BYTES))
        ends = content + file.read(_MARKED_BYTES)
        if content.startswith(_STARTS) or any(mark in ends for mark in _MARKS):
            return True
        if not content.startswith(b"---\n"):
            return False
        file.seek(0)
        text = file.read().decode(errors="replace")
    body, last, end = text.rpartition(_DIGEST.partition("{")[0])
    return last + end == _DIGEST.format(_digest(body))


def _is_export(folder: Path) -> bool:
    try:
        with (folder / _CARD).open("rb") as file:
            return bool({"architecture", "config"} <= json.load(file).keys())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]
