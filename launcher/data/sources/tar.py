"""Pictures in tar files, which are not unpacked: headers are read once, each picture then by its place in the file.

ImageNet-1k is read in the three files that are downloaded. ILSVRC2012_img_train.tar holds a tar file a class,
ILSVRC2012_img_val.tar the pictures alone. Whose classes are in the development kit: a line of numbers for each picture
in the order of names, and a table from numbers to WordNet ids. Imports no torch.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from launcher.data.decode import UnreadableImage
from launcher.data.folder import EXTENSIONS, problem
from launcher.data.sources.source import Piece, Report, Source, Storage, below, labelled
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


@dataclass(frozen=True, slots=True)
class Member:
    """A file in a tar file, as bytes [start, start + size) of it."""

    name: str
    start: int
    size: int


def members(file: BinaryIO, archive: str, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """The files in a tar file, or in one that is itself bytes [start, end) of `archive`; hard links as what they mean.

    Raises:
        UserError: it is no tar file, compressed, cut off or damaged.
    """
    known: dict[str, Member] = {}
    try:
        file.seek(start)
        if file.read(6).startswith(_COMPRESSED):
            message = "is compressed, so that no picture can be read by itself; decompress it to a plain .tar"
            raise problem(archive, message)
        file.seek(start)
        with tarfile.TarFile(fileobj=file, mode="r") as tar:
            while (found := tar.next()) is not None and (end is None or found.offset < end):
                # note: after a file of less than no bytes, tarfile may come by the same header for ever
                if tar.offset <= found.offset:
                    raise problem(archive, f"is damaged at byte {found.offset:,}; download it again")
                # note: tarfile would keep them all, a kilobyte each
                tar.members.clear()  # type: ignore[attr-defined]
                if found.islnk() and found.linkname in known:
                    known[found.name] = Member(found.name, known[found.linkname].start, known[found.linkname].size)
                elif found.isreg() and not found.issparse():
                    known[found.name] = Member(found.name, found.offset_data, found.size)
                else:
                    continue
                yield known[found.name]
            stopped = tar.offset
        if found is None:
            file.seek(stopped)
            # note: tarfile takes a damaged header for the end
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise problem(archive, f"is damaged at byte {stopped:,}; download it again")
    except UserError:
        raise
    except tarfile.TarError as error:
        raise problem(archive, f"is no whole tar file ({error}); download it again") from None
    # note: what a kind of storage raises is its own affair
    except Exception as error:
        raise problem(
            archive, f"cannot be read ({type(error).__name__}: {error}); the same command tries again"
        ) from None


def class_folders(storage: Storage, archive: str, split: str, report: Report) -> Source:
    """The pictures of a tar file of class folders: .../SPLIT/CLASS/NAME.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    found = []
    with storage.open(archive, AHEAD) as file:
        total = file.seek(0, 2)
        for number, member in enumerate(members(file, archive)):
            if number % _MEMBERS_A_REPORT == 0:
                report(f"list of {split} pictures", member.start, total)
            parts = PurePosixPath(member.name).parts
            if len(parts) >= 3 and parts[-3] == split and not parts[-2].startswith("."):
                found.append((parts[-2], Member(parts[-1], member.start, member.size)))
    report(f"list of {split} pictures", total, total)
    return tar_source(storage, archive, split, found)


def tar_source(storage: Storage, archive: str, split: str, found: Iterable[tuple[str, Member]]) -> Source:
    """The pictures among a tar file's members, given with their classes; of equal names the last counts, as unpacked.

    Raises:
        UserError: there are none.
    """
    pictures = {
        (name, member.name): (member.start, member.size)
        for name, member in found
        if member.name.lower().endswith(EXTENSIONS) and not member.name.startswith(".")
    }
    if not pictures:
        raise problem(archive, f"holds no pictures ({' '.join(EXTENSIONS)}) as .../{split}/CLASS/NAME")
    names = sorted(pictures)
    places = np.array([pictures[name] for name in names], np.int64)
    classes, files, labels = labelled(names)

    def piece(number: int) -> Piece:
        start, size = places[number].tolist()
        return Piece(files[number], archive, start, size)

    return Source(archive, split, classes, files, labels, storage, piece, lambda: places[:, 1].tolist())


def imagenet_source(storage: Storage, path: str, split: str, report: Report) -> Source:
    """The pictures of a split whose tar file lies in a folder.

    Raises:
        UserError: a file is missing or damaged.
    """
    archive = below(path, ARCHIVES[split])
    found = _train(storage, archive, report) if split == "train" else _val(storage, path, archive, report)
    return tar_source(storage, archive, split, found)


def _train(storage: Storage, archive: str, report: Report) -> list[tuple[str, Member]]:
    with storage.open(archive, _AHEAD_OF_CLASSES) as file:
        inner = [member for member in members(file, archive) if member.name.endswith(".tar")]

    def pictures(tar: Member) -> list[tuple[str, Member]]:
        with storage.open(archive, AHEAD) as file:
            inside = members(file, archive, tar.start, tar.start + tar.size)
            return [(tar.name.removesuffix(".tar"), member) for member in inside]

    found: list[tuple[str, Member]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        try:
            for number, part in enumerate(pool.map(pictures, inner)):
                found += part
                report("list of train pictures", number + 1, len(inner))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def _val(storage: Storage, path: str, archive: str, report: Report) -> list[tuple[str, Member]]:
    classes = _val_classes(storage, path)
    with storage.open(archive, AHEAD) as file:
        found = sorted(members(file, archive), key=lambda member: member.name)
    if len(found) != len(classes):
        message = f"holds {len(found):,} pictures, {DEVKIT} the classes of {len(classes):,}; download them again"
        raise problem(archive, message)
    report("list of val pictures", len(found), len(found))
    return list(zip(classes, found, strict=True))


def _val_classes(storage: Storage, path: str) -> list[str]:
    """The WordNet ids of the validation pictures in the order of their names."""
    # note: takes a while, and is needed here alone
    from scipy.io import loadmat

    devkit = below(path, DEVKIT)
    if not storage.holds(devkit):
        raise problem(path, f"holds no {DEVKIT}, which says of what class the validation pictures are; add it")
    (data,) = storage.read([Piece(DEVKIT, devkit)])
    try:
        if isinstance(data, UnreadableImage):
            raise ValueError(str(data))
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            table, truth = (_content(tar, name) for name in (_TABLE, _TRUTH))
        synsets = loadmat(io.BytesIO(table), squeeze_me=True)["synsets"]
        # note: others of the tree's nodes stand for groups of classes
        leaves = synsets[synsets["num_children"] == 0]
        names = dict(zip(map(int, leaves["ILSVRC2012_ID"]), map(str, leaves["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]
    # note: a damaged file fails with whatever error its readers happen to meet
    except Exception as error:
        raise problem(devkit, f"cannot be read ({type(error).__name__}: {error}); download it again") from None


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    """A file of the kit, whatever its topmost folder is called."""
    found = next((member for member in itertools.islice(tar, 1000) if member.name.endswith(name)), None)
    file = tar.extractfile(found) if found is not None and found.size <= _MOST_BYTES else None
    if file is None:
        raise ValueError(f"it holds no {name}")
    return file.read()
