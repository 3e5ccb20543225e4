"""Read tar files without unpacking: headers once, then each image by its offset; imports no torch."""

import errno
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

from launcher.counts import count_of
from launcher.data.index import Piece
from launcher.data.sources.layout import problem, readable

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
# Bytes per read if headers are close together; remote reads of fewer bytes take as long.
AHEAD = 1 << 22
_MOST_BYTES = 1 << 26  # of a header


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
    with readable(archive, "run the same command to retry"):
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
        except tarfile.TarError as error:
            raise problem(archive, f"is not a complete tar file ({error}); download it again") from None
