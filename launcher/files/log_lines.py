"""Lines of the logs of ranks: each starts with its time, and those of the launcher have a mark."""

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_RANK, _LAUNCHER = "  ", "| "
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(  |\| )")


def stamp(mark: str = _RANK) -> str:
    """Return the start of a line: the local time, and a mark."""
    return time.strftime("%Y-%m-%d %H:%M:%S") + mark


def append(log: Path, lines: Iterable[str]) -> None:
    """Append what the launcher prints on the terminal to the log of a rank; the disk may be full."""
    text = "".join(f"{stamp(_LAUNCHER)}{line}\n" for line in lines)
    # note: as one write, which no line of the rank divides
    with suppress(OSError), log.open("a", encoding="utf-8", errors="backslashreplace", buffering=1 << 20) as file:
        file.write(text)


def of_a_rank(line: str) -> str | None:
    """Return a line of a log without its time; None for one of the launcher."""
    match = _STAMP.match(line)
    if match is None:
        return line
    return None if match[1] == _LAUNCHER else line[match.end() :]
