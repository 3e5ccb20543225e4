"""A file that several processes write; imports no torch."""

import os
from multiprocessing.reduction import DupFd
from typing import Any


class SharedFile:
    """An open file for this process and the workers that it starts, which hold its lock until all have ended."""

    def __init__(self, number: int):
        self._number = number

    def __reduce__(self) -> Any:
        return _received, (DupFd(self._number),)

    def write(self, data: bytes, offset: int) -> None:
        """Write all data. Raises OSError."""
        write_all(self._number, data, offset)


def _received(passed: Any) -> SharedFile:
    return SharedFile(passed.detach())


def write_all(file: int, data: bytes, offset: int) -> None:
    """Write all data; one call of the system may write less, and at most 2 GiB."""
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, offset)
        view, offset = view[done:], offset + done
