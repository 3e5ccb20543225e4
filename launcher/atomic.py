"""Files that appear complete or not at all: written under a temporary name beside them, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def writing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A name to write under; the file there becomes `path` once all is written, and is removed where that fails.

    With `shared`, other processes may write the same file at the same time: the last one's stays.
    """
    process = f".{os.getpid()}" if shared else ""
    temporary = path.with_name(f".{path.name}{process}.tmp")
    # note: what a killed process has left goes, and a link that stands there is not followed
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, shared: bool = False) -> None:
    """Write a text in UTF-8."""
    with writing(path, shared=shared) as temporary:
        temporary.write_text(text, encoding="utf-8")
