"""Pictures in a tar file, which is not unpacked: its headers are read once, each picture then by its place in the file.

Imports no torch.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO

import numpy as np

from launcher.data.folder import EXTENSIONS, problem
from launcher.data.sources.source import Piece, Report, Source, Storage, labelled
from launcher.errors import UserError

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_MEMBERS_A_REPORT = 1000
# Bytes that are read at once where headers lie close together: of what is far away, less costs as much.
AHEAD = 1 << 22


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
