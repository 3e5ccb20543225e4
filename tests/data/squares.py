"""The work of worker processes, in a file that imports no torch."""

import errno
import os
import signal
import time

from launcher.errors import UserError


def squares(numbers: list[int]) -> list[int]:
    """Return the squares of numbers, but fail with 30, and end the process with 60."""
    if 30 in numbers:
        raise UserError("thirty")
    if 60 in numbers:
        os.kill(os.getpid(), signal.SIGKILL)
    return [number**2 for number in numbers]


class Held:
    """Hold numbers in a worker process, the first ones longest, until they are released."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def hold(self, numbers: list[int]) -> list[int]:
        """Return the squares of numbers as `squares` does."""
        time.sleep(0.1 / (1 + numbers[0]))
        self._numbers += numbers
        return squares(numbers)

    def release(self, numbers: list[int]) -> list[tuple[int, bool]]:
        """Return this process, and whether it held each number; fail as the disk does with 90."""
        if 90 in numbers:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return [(os.getpid(), number in self._numbers) for number in numbers]
