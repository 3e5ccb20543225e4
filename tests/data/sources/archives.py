"""Images whose colour is their class, and tar files of given members."""

import io
import tarfile
from pathlib import Path

from PIL import Image

from .downloads import add


def png(name: str) -> bytes:
    """Return an image of a class: ant is red, anything else is blue."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (200, 0, len(name)) if "ant" in name else (0, len(name), 200)).save(file, "PNG")
    return file.getvalue()


def tar(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, data in members:
            add(file, name, data)
    return path
