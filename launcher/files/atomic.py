"""Write files atomically: under a temporary name in the same folder, then renamed."""

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_TEMPORARY = re.compile(r"\..+-(\d+)-[0-9a-f]{8}\.tmp")


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path; its file is renamed to `path` after the block, or removed if the block fails.

    The name has host, process and a random number, so that concurrent writers use different names; the last file wins.

    An OSError of the block that has no path, or that of the temporary file, gets that of the file.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files in and below a folder of processes that were killed; those of running ones stay."""
    for path in folder.rglob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and not (f".{socket.gethostname()}-{match[1]}-" in path.name and _is_running(int(match[1]))):
            with suppress(OSError):
                path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
