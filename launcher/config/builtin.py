"""Samples that this program makes: the bases of their kinds, each of which is one file with the kind's name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from launcher.config.options import classes

if TYPE_CHECKING:
    from launcher.config.schema import Dataset

FOLDER = "folder"
# The package of the kinds.
_FOLDER = "data.builtin"
_FILES = Path(__file__).parents[1].joinpath(*_FOLDER.split(".")).glob("[a-z]*.py")
# A data set's kind: `folder`, for what the user has, or that of a file.
if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[(FOLDER, *sorted(path.stem for path in _FILES))]


class Labelled(NamedTuple):
    """What labels are of, as a task's `labelled`, and their names."""

    what: str
    names: list[str]


class BuiltInImages(ABC):
    """Images with labels, which are drawn on first use."""

    @abstractmethod
    def labels(self, dataset: Dataset) -> Labelled:
        """Return the names of the labels, drawn or not."""

    @abstractmethod
    def draw(self, folder: Path, split: str, samples: int, size: int) -> None:
        """Write the images of a split [size, size] and their labels, as a folder of the user's has them."""


class BuiltInText(ABC):
    """Text that is on every machine, in files with an extension, `without` folders of these names."""

    extension: ClassVar[str]
    without: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def root(self) -> Path:
        """Return the folder of the files."""


def is_drawn(kind: str) -> bool:
    """Return whether a kind is images that this program draws."""
    return kind != FOLDER and bool(_codes(kind, BuiltInImages))


def images_of(kind: str) -> BuiltInImages:
    """Return the code of a kind of images."""
    images: BuiltInImages = _code(kind, BuiltInImages)()
    return images


def text_of(kind: str) -> BuiltInText:
    """Return the code of a kind of text."""
    text: BuiltInText = _code(kind, BuiltInText)()
    return text


def _code(kind: str, base: type[Any]) -> type[Any]:
    (found,) = _codes(kind, base)
    return found


def _codes(kind: str, base: type[Any]) -> list[type[Any]]:
    return classes(import_module(f"launcher.{_FOLDER}.{kind}"), base)
