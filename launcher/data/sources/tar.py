"""Read images from tar files without unpacking: headers once, then each image by its offset.

ImageNet-1k comes as three files. ILSVRC2012_img_train.tar contains one tar file per class, ILSVRC2012_img_val.tar the
images alone, and the development kit their classes: a number for each image in the order of names, and a table from
numbers to WordNet ids. Imports no torch.
"""

import errno
import io
import itertools
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from launcher.counts import count_of
from launcher.data.dropped import REPLACED, drops_of
from launcher.data.folder import Folder, counted
from launcher.data.listing import EXTENSIONS, is_image
from launcher.data.sources.layout import is_remote, problem
from launcher.data.sources.pieces import Archive, Packed, Piece
from launcher.data.sources.source import Files, below, labelled
from launcher.data.workers import Report, in_threads
from launcher.errors import UserError

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
# Bytes per read if headers are close together; remote reads of fewer bytes take as long.
AHEAD = 1 << 22
ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_TABLE, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_MOST_BYTES = 1 << 26  # of a header, and of a file in the development kit
_AHEAD_OF_CLASSES = 1 << 16


class BoundedReads:
    """A file that refuses long single reads, since the headers of an archive may state any length of others."""

    def __init__(self, file: BinaryIO, most: int):
        self._file, self._most = file, most

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, or the rest; raise OSError if they are more than the most."""
        content = b"" if size > self._most else self._file.read(size if size >= 0 else self._most + 1)
        if max(size, len(content)) > self._most:
            raise OSError(errno.EFBIG, f"a header of more than {count_of(self._most, 'byte')}")
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def read_members(
    file: BinaryIO,
    archive: str,
    start: int = 0,
    end: int | None = None,
    unread: Callable[[tarfile.TarInfo], object] = lambda member: None,
) -> Iterator[Piece]:
    """Yield the files of a tar file, or of one in bytes [start, end) of `archive`; yields hard links as files.

    `unread` is called with each other member.

    Raises UserError if the file is not a tar file, or is compressed, truncated or damaged.
    """
    pieces: dict[str, Piece] = {}
    try:
        file.seek(start)
        if file.read(6).startswith(_COMPRESSED):
            message = "is compressed, so single images cannot be read from it; decompress it to a plain .tar"
            raise problem(archive, message)
        file.seek(start)
        with tarfile.TarFile(fileobj=BoundedReads(file, _MOST_BYTES), mode="r") as tar:
            while (header := tar.next()) is not None and (end is None or header.offset < end):
                # note: after a member of negative size, tarfile may read the same header forever
                if tar.offset <= header.offset:
                    raise problem(archive, f"is damaged at byte {header.offset:,}; download it again")
                # note: tarfile would keep all members, a kilobyte each
                tar.members.clear()  # type: ignore[attr-defined]
                if header.islnk() and header.linkname in pieces:
                    pieces[header.name] = replace(pieces[header.linkname], name=header.name)
                elif header.isreg() and not header.issparse():
                    pieces[header.name] = Piece(header.name, archive, header.offset_data, header.size)
                else:
                    unread(header)
                    continue
                yield pieces[header.name]
            stopped = tar.offset
        if header is None:
            file.seek(stopped)
            # note: tarfile treats a damaged header as the end
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise problem(archive, f"is damaged at byte {stopped:,}; download it again")
    except UserError:
        raise
    except tarfile.TarError as error:
        raise problem(archive, f"is not a complete tar file ({error}); download it again") from None
    # note: file systems raise arbitrary errors
    except Exception as error:
        raise problem(
            archive, f"cannot be read ({type(error).__name__}: {error}); run the same command to retry"
        ) from None


def _tar_source(files: Files, archive: str, split: str, members: Iterable[tuple[str, Piece]]) -> Folder:
    """Find the images among a tar file's (class, member) pairs; the last of equal names counts, as when unpacking.

    Raises UserError if it contains no images.
    """
    listed = [(class_name, member) for class_name, member in members if is_image(member.name)]
    images = {(class_name, member.name): (member.start, member.size) for class_name, member in listed}
    if not images:
        raise problem(
            archive, f"contains no images ({' '.join(EXTENSIONS)}) in tar files of classes; download it again"
        )
    names = sorted(images)
    places = np.array([(0, *images[name], 0) for name in names], np.int64)
    version = files.version(archive) if is_remote(archive) else ""
    replaced = [member.name for class_name, member in listed if images[class_name, member.name][0] != member.start]
    stored = Packed([Archive(archive, version)], places)
    folder = Folder(archive, split, *labelled(names), stored, seen=len(listed), dropped=drops_of({REPLACED: replaced}))
    return counted(folder)


def imagenet_source(files: Files, path: str, split: str, report: Report) -> Folder:
    """Find the images of a split in a folder of ImageNet's tar files.

    Raises UserError if a file is missing or damaged.
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

    return [*itertools.chain(*in_threads(images, inner, report=report, what="listing train images"))]


def _val(files: Files, path: str, archive: str, report: Report) -> list[tuple[str, Piece]]:
    classes = _val_classes(files, path)
    with files.open(archive, AHEAD) as file:
        images = sorted(read_members(file, archive), key=lambda member: member.name)
    if len(images) != len(classes):
        message = f"has {count_of(len(images), 'image')}, but {DEVKIT} lists {len(classes):,}; download both again"
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
    with files.open(devkit, AHEAD) as opened:
        data = opened.read(_MOST_BYTES)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            table, truth = (_content(tar, name) for name in (_TABLE, _TRUTH))
        synsets = loadmat(io.BytesIO(table), squeeze_me=True)["synsets"]
        # note: inner nodes of the tree are groups of classes
        leaves = synsets[synsets["num_children"] == 0]
        names = dict(zip(map(int, leaves["ILSVRC2012_ID"]), map(str, leaves["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]
    # note: the readers raise arbitrary errors on damaged files
    except Exception as error:
        raise problem(devkit, f"cannot be read ({type(error).__name__}: {error}); download it again") from None


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    """Read a file of the kit, with any name of its top folder."""
    match = next((member for member in itertools.islice(tar, 1000) if member.name.endswith(name)), None)
    file = tar.extractfile(match) if match is not None and match.size <= _MOST_BYTES else None
    if file is None:
        raise ValueError(f"it contains no {name}")
    return file.read()
