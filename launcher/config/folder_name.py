"""Names of folders and paths to files, as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

_MOST_BYTES = 200
_HOME = re.compile(r"^\$HOME(?=/|$)")


def _check(text: str) -> str:
    if "/" in text or text in ("", ".", "..") or not text.isprintable() or len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"must be the name of a folder: no /, at most {_MOST_BYTES} bytes; runs=FOLDER says where")
    return text


def expanded(text: str) -> str:
    """The path with `~` or `$HOME` at its start as the folder that it stands for, which no shell has done in YAML."""
    if not text:
        raise ValueError("is empty; write a path")
    head, slash, rest = _HOME.sub("~", text, count=1).partition("/")
    if not head.startswith("~"):
        return text
    try:
        return f"{Path(head).expanduser()}{slash}{rest}"
    except RuntimeError:
        raise ValueError(f"{head} is nobody's home folder here; write ./{head} for what lies in this one") from None


# note: no path, so that a recipe from elsewhere cannot say where a run is kept
FolderName = Annotated[str, AfterValidator(_check)]
AnyPath = Annotated[str, AfterValidator(expanded)]
