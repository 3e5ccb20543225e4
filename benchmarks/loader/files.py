"""The images to load: the JPEGs of a tar file in class folders, and FFCV files of them."""

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np

from launcher.data.ffcv.dataset import file_name
from launcher.data.ffcv.encoder import encode_all
from launcher.data.ffcv.unfinished import Encoded, UnfinishedFile
from launcher.data.loaders.ffcv import FFCVFile
from launcher.data.sources.source import Files as SourceFiles
from launcher.data.sources.source import Piece


@dataclass(frozen=True)
class Files:
    """FFCV files of the same images: as published, only JPEGs, small raw pixels."""

    published: Path
    jpegs: Path
    small: Path


_CLASSES = ("a", "b")


@contextmanager
def unpacked(tar: Path) -> Iterator[Path]:
    """Unpack the JPEGs of a tar file into a temporary data set of one class, the same for training and validation."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        folder_of_class = root / "train" / _CLASSES[0]
        folder_of_class.mkdir(parents=True)
        with tarfile.open(tar) as archive:
            for member in archive:
                content = archive.extractfile(member)
                if content is not None and PurePath(member.name).suffix.lower() in (".jpg", ".jpeg"):
                    (folder_of_class / PurePath(member.name).name).write_bytes(content.read())
        (root / "val").symlink_to("train")
        yield root


def originals(folder: Path) -> list[Path]:
    return sorted((folder / "train").glob("*/*.jp*g"))


def write_all(folder: Path, files: FFCVFile) -> Files:
    """Write the FFCV files to the paths where a run with the same values looks for them."""
    (folder / "ffcv").mkdir()
    jpegs = replace(files, jpeg_share=1.0)
    written = Files(
        *(
            _write(folder, values)
            for values in (
                files,
                jpegs,
                replace(files, jpeg_share=0.0, max_side=320),
            )
        )
    )
    (folder / "ffcv" / file_name("val", files)).symlink_to(written.published)
    return written


def copied(folder: Path, copies: int, root: Path) -> Path:
    """Write a data set with `copies` copies of each image into a folder, and return it."""
    # note: a run needs two classes
    for name in _CLASSES:
        (root / "train" / name).mkdir(parents=True)
    (root / "val").symlink_to("train")
    for number, path in enumerate(originals(folder)):
        for copy in range(copies):
            (root / "train" / _CLASSES[number % 2] / f"{copy}-{path.name}").hardlink_to(path)
    return root


def _write(folder: Path, values: FFCVFile) -> Path:
    pieces = [Piece(path.name, str(path)) for path in originals(folder)]
    target = folder / "ffcv" / file_name("train", values)
    labels = np.arange(len(pieces)) % len(_CLASSES)
    unfinished = UnfinishedFile(target, len(pieces), values.max_side, identity="")
    images = encode_all(SourceFiles("/"), [*enumerate(pieces)], values=values, upright=False)
    with closing(unfinished), unfinished.alone():
        for number, image in enumerate(images):
            assert isinstance(image, Encoded)
            unfinished.place(number, image.form)
            unfinished.store(number, image.data)
        with unfinished.finished(labels):
            pass
    return target
