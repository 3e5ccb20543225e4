"""Images whose colour is their class, tar files of given members, and what an inspection finds in them."""

import io
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.inspection import Inspection, inspect_data
from launcher.errors import UserError

from ..conftest import words_for
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


def draw(folder: Path, names: list[str]) -> Path:
    """Write images of these names below a folder, and return it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(name))
    return folder


def inspected(path: Path, *words: str) -> Inspection:
    """Inspect the images at a path, with a config of these words."""
    return inspect_data(compose(words_for(path, *words)).config, must_exist=True)


def error(path: Path, *words: str) -> str:
    """Return the one-line error of an inspection."""
    with pytest.raises(UserError) as raised:
        inspected(path, *words)
    assert "\n" not in str(raised.value)
    return str(raised.value)
