"""The name of one folder: no path, so that a recipe from elsewhere cannot say where a run is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

_MOST_BYTES = 200


def _check(text: str) -> str:
    if "/" in text or text in ("", ".", "..") or not text.isprintable() or len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"must be the name of a folder: no /, at most {_MOST_BYTES} bytes; runs=FOLDER says where")
    return text


FolderName = Annotated[str, AfterValidator(_check)]
