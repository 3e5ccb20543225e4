"""Host memory that this process may use: the machine's, or less by the limits of its control groups."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from launcher.compute.probe import CGROUP

# The files of version 2 and 1 with the limit, the bytes in use, and the page cache in them, which the kernel can take.
_VERSION_2 = "memory.max", "memory.current", ("active_file", "inactive_file")
_VERSION_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")


class HostMemory(NamedTuple):
    """Bytes in total and available, and what limits the total: `the machine`, or the file of a control group."""

    total: int
    available: int
    limit: str


def usable_memory(groups: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> HostMemory:
    """Return the memory of this machine, or of the narrowest control group around this process if that has less.

    groups: where the control groups are mounted. own: the file with those of this process.
    """
    # note: a slow import
    import psutil

    total, available = (int(value) for value in psutil.virtual_memory()[:2])
    limited_by = "the machine"
    for folder, (limit_file, used_file, caches) in _groups(groups, own):
        # note: without a limit, version 2 has the word max
        with suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in (limit_file, used_file))
            if limit < total:
                total, limited_by = limit, str(folder / limit_file)
            available = min(available, max(0, limit - used + _listed(folder / "memory.stat", caches)))
    return HostMemory(total, available, limited_by)


def _groups(groups: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, tuple[str, str]]]]:
    """Yield the folders of the memory controller's groups from the process's own to the root, with their files."""
    paths = {"": ".", "memory": "."}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            paths |= {name: path.strip("/") for name in controllers.split(",") if name in paths}
    for root, name, files in ((groups, "", _VERSION_2), (groups / "memory", "memory", _VERSION_1)):
        # note: without a namespace of its own, a container is at the root of its mount, whatever its path
        for folder in (Path(paths[name]), *Path(paths[name]).parents):
            yield root / folder, files


def _listed(path: Path, names: tuple[str, str]) -> int:
    """Return the sum of some values of a file of names and values."""
    values = dict(line.split() for line in path.read_text().splitlines())
    return sum(int(values.get(name, 0)) for name in names)
