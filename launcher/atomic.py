"""Write files atomically: under a temporary name in the same folder, then renamed."""

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


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


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
