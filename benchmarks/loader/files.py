"""The pictures to load: a tar file's JPEGs in class folders, and the FFCV files that are made of them."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np

from launcher.config.compose import compose
from launcher.config.schema import FFCVFiles, FFCVLoader
from launcher.data.ffcv.dataset import file_name
from launcher.data.ffcv.writer import BetonWriter, Encoded, encode_all
from launcher.data.sources.source import Files as SourceFiles
from launcher.data.sources.source import Piece


@dataclass(frozen=True)
class Files:
    """FFCV files of the same pictures: as published, JPEGs alone, those with restart markers, and small pixels."""

    published: Path
    jpegs: Path
    stretches: Path
    small: Path


_CLASSES = ("a", "b")


@contextmanager
def pictures(tar: Path) -> Iterator[Path]:
    """A data set for as long as it is needed: the tar file's JPEGs, for training and for validation, in one class."""
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


def write_all(folder: Path, files: FFCVFiles) -> Files:
    """Write them where a run looks for those of its own values."""
    (folder / "ffcv").mkdir()
    jpegs = replace(files, jpeg_share=1.0)
    made = Files(
        *(
            _write(folder, values)
            for values in (
                files,
                jpegs,
                replace(jpegs, restart_interval=4),
                replace(files, jpeg_share=0.0, max_side=320),
            )
        )
    )
    (folder / "ffcv" / file_name("val", files)).symlink_to(made.published)
    return made


def repeated(folder: Path, copies: int) -> Path:
    """A data set of so many copies of each picture, with its FFCV files."""
    root = folder / "copies"
    # note: a run refuses one class alone
    for name in _CLASSES:
        (root / "train" / name).mkdir(parents=True)
    (root / "val").symlink_to("train")
    for number, path in enumerate(originals(folder)):
        for copy in range(copies):
            (root / "train" / _CLASSES[number % 2] / f"{copy}-{path.name}").hardlink_to(path)
    composed = compose(["dataloader=ffcv"]).config.dataloader
    assert isinstance(composed, FFCVLoader)
    (root / "ffcv").mkdir()
    (root / "ffcv" / file_name("val", composed.files)).symlink_to(_write(root, composed.files))
    return root


def _write(folder: Path, values: FFCVFiles) -> Path:
    pieces = [Piece(path.name, str(path)) for path in originals(folder)]
    target = folder / "ffcv" / file_name("train", values)
    labels = np.arange(len(pieces)) % len(_CLASSES)
    writer = BetonWriter(target, labels, max_side=values.max_side, identity="")
    numbered = list(enumerate(pieces))
    for number, picture in enumerate(encode_all(SourceFiles("/"), numbered, values=values, upright=False)):
        assert isinstance(picture, Encoded)
        writer.add(number, picture)
    writer.finish()
    writer.publish()
    writer.close()
    return target
