"""Images in tar files, which are not unpacked: headers are read once, then each image by its place in the file.

ImageNet-1k is read from the three files that its site offers. ILSVRC2012_img_train.tar holds a tar file a class,
ILSVRC2012_img_val.tar the images alone. The development kit holds their classes: a number for each image in the order
of names, and a table from numbers to WordNet ids. Imports no torch.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from launcher.data.decode import UnreadableImage
from launcher.data.folder import EXTENSIONS, is_image, problem
from launcher.data.sources.source import Files, Piece, Report, Source, below, labelled
from launcher.errors import UserError

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_MEMBERS_A_REPORT = 1000
# Bytes that are read at once where headers lie close together: of what is far away, less costs as much.
AHEAD = 1 << 22
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_TABLE, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_MOST_BYTES = 1 << 26  # of a file in the development kit
# note: of another machine's disk or a bucket, one reader alone would wait most of the time
_READERS = 16
_AHEAD_OF_CLASSES = 1 << 16


def read_members(file: BinaryIO, archive: str, start: int = 0, end: int | None = None) -> Iterator[Piece]:
    """Yield the files in a tar file, or in one that is itself bytes [start, end) of `archive`; hard links as files.

    Raises:
        UserError: it is no tar file, compressed, cut off or damaged.
    """
    known: dict[str, Piece] = {}
    try:
        file.seek(start)
        if file.read(6).startswith(_COMPRESSED):
            message = "is compressed, and images cannot be read from it singly; decompress it to a plain .tar"
            raise problem(archive, message)
        file.seek(start)
        with tarfile.TarFile(fileobj=file, mode="r") as tar:
            while (header := tar.next()) is not None and (end is None or header.offset < end):
                # note: after a file of negative size, tarfile may read the same header for ever
                if tar.offset <= header.offset:
                    raise problem(archive, f"is damaged at byte {header.offset:,}; download it again")
                # note: tarfile would keep them all, a kilobyte each
                tar.members.clear()  # type: ignore[attr-defined]
                if header.islnk() and header.linkname in known:
                    known[header.name] = replace(known[header.linkname], name=header.name)
                elif header.isreg() and not header.issparse():
                    known[header.name] = Piece(header.name, archive, header.offset_data, header.size)
                else:
                    continue
                yield known[header.name]
            stopped = tar.offset
        if header is None:
            file.seek(stopped)
            # note: tarfile takes a damaged header for the end
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise problem(archive, f"is damaged at byte {stopped:,}; download it again")
    except UserError:
        raise
    except tarfile.TarError as error:
        raise problem(archive, f"is not a complete tar file ({error}); download it again") from None
    # note: each file system raises errors of its own
    except Exception as error:
        raise problem(
            archive, f"cannot be read ({type(error).__name__}: {error}); run the same command to retry"
        ) from None


def class_folders(files: Files, archive: str, split: str, report: Report) -> Source:
    """Find the images of a tar file of class folders: .../SPLIT/CLASS/NAME.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    images = []
    with files.open(archive, AHEAD) as file:
        total = file.seek(0, 2)
        for number, member in enumerate(read_members(file, archive)):
            if number % _MEMBERS_A_REPORT == 0:
                report(f"listing {split} images", member.start, total)
            parts = PurePosixPath(member.name).parts
            if len(parts) >= 3 and parts[-3] == split and not parts[-2].startswith("."):
                images.append((parts[-2], replace(member, name=parts[-1])))
    report(f"listing {split} images", total, total)
    return _tar_source(files, archive, split, images)


def _tar_source(files: Files, archive: str, split: str, members: Iterable[tuple[str, Piece]]) -> Source:
    """Find the images among a tar file's members, each with its class; the last of equal names counts, as unpacked.

    Raises:
        UserError: there are none.
    """
    images = {(name, member.name): (member.start, member.size) for name, member in members if is_image(member.name)}
    if not images:
        raise problem(archive, f"contains no images ({' '.join(EXTENSIONS)}) at .../{split}/CLASS/NAME")
    names = sorted(images)
    places = np.array([images[name] for name in names], np.int64)
    return Source(archive, split, *labelled(names), files, archive, places[:, 1].tolist, places)


def imagenet_source(files: Files, path: str, split: str, report: Report) -> Source:
    """Find the images of a split whose tar file lies in a folder.

    Raises:
        UserError: a file is missing or damaged.
    """
    archive = below(path, ARCHIVES[split])
    images = _train(files, archive, report) if split == "train" else _val(files, path, archive, report)
    return _tar_source(files, archive, split, images)


def _train(files: Files, archive: str, report: Report) -> list[tuple[str, Piece]]:
    with files.open(archive, _AHEAD_OF_CLASSES) as file:
        inner = [member for member in read_members(file, archive) if member.name.endswith(".tar")]

    def images(tar: Piece) -> list[tuple[str, Piece]]:
        assert tar.size is not None
        with files.open(archive, AHEAD) as file:
            inside = read_members(file, archive, tar.start, tar.start + tar.size)
            return [(tar.name.removesuffix(".tar"), member) for member in inside]

    contents: list[tuple[str, Piece]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        try:
            for number, part in enumerate(pool.map(images, inner)):
                contents += part
                report("listing train images", number + 1, len(inner))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return contents


def _val(files: Files, path: str, archive: str, report: Report) -> list[tuple[str, Piece]]:
    classes = _val_classes(files, path)
    with files.open(archive, AHEAD) as file:
        images = sorted(read_members(file, archive), key=lambda member: member.name)
    if len(images) != len(classes):
        message = f"has {len(images):,} images, but {DEVKIT} lists {len(classes):,}; download both again"
        raise problem(archive, message)
    report("listing val images", len(images), len(images))
    return list(zip(classes, images, strict=True))


def _val_classes(files: Files, path: str) -> list[str]:
    """Return the WordNet ids of the validation images in the order of their names."""
    # note: a slow import
    from scipy.io import loadmat

    devkit = below(path, DEVKIT)
    if not files.holds(devkit):
        raise problem(path, f"has no {DEVKIT}, which lists the validation images' classes; add it")
    (data,) = files.read([Piece(DEVKIT, devkit)])
    try:
        if isinstance(data, UnreadableImage):
            raise ValueError(str(data))
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            table, truth = (_content(tar, name) for name in (_TABLE, _TRUTH))
        synsets = loadmat(io.BytesIO(table), squeeze_me=True)["synsets"]
        # note: other nodes of the tree are groups of classes
        leaves = synsets[synsets["num_children"] == 0]
        names = dict(zip(map(int, leaves["ILSVRC2012_ID"]), map(str, leaves["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]
    # note: on a damaged file the readers raise whatever they happen to meet
    except Exception as error:
        raise problem(devkit, f"cannot be read ({type(error).__name__}: {error}); download it again") from None


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    """Read a file of the kit, whatever its topmost folder is called."""
    found = next((member for member in itertools.islice(tar, 1000) if member.name.endswith(name)), None)
    file = tar.extractfile(found) if found is not None and found.size <= _MOST_BYTES else None
    if file is None:
        raise ValueError(f"no {name} in it")
    return file.read()
