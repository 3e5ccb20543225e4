"""Choose folders for the FFCV files of a run on local disks of the node, where they cannot be beside the images."""

import getpass
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from launcher import paths
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.loaders.ffcv import FFCVLoader
from launcher.data.sources.layout import is_remote

_BLOCKS = Path("/sys/class/block")
# note: others are in memory, in files, or on a network
_DISK = re.compile(r"nvme|sd|vd|xvd")


class Mount(NamedTuple):
    """A mounted file system: its folder, its device and the type."""

    folder: str
    device: str
    type: str


class Node(NamedTuple):
    """The file systems that are mounted on a node, in order, its block devices as in /sys, and its environment."""

    mounts: Sequence[Mount]
    blocks: Path
    environment: Mapping[str, str]

    @classmethod
    def here(cls) -> "Node":
        mounts: list[Mount] = []
        with suppress(OSError, RuntimeError):  # note: some containers hide them
            mounts = [Mount(one.mountpoint, one.device, one.fstype) for one in psutil.disk_partitions(all=True)]
        return cls(mounts, _BLOCKS, os.environ)


def network_of(path: str, node: Node) -> str | None:
    """Return the type of the file system of another machine that has a path; None on a disk or in memory."""
    mount, known = _mount_of(Path(path), node.mounts), _known()
    if is_remote(path) or mount is None:
        return None
    is_fuse = mount.type.startswith("fuse") and mount.type not in known["local_fuse"]
    return mount.type if is_fuse or mount.type in known["network"] else None


def local_folders(node: Node) -> list[Path]:
    """Return the folders on local disks in which this user may create files, the fastest first.

    Those of environment variables and with the names of conf/disks.yaml on any local disk that does not rotate, and all
    where a disk of a rented machine is mounted.
    """
    known = _known()
    named = [node.environment[name] for name in known["variables"] if node.environment.get(name)] + known["folders"]
    ranked: dict[Path, int] = {}
    for folder in (Path(name) for name in named):
        mount = _mount_of(folder, node.mounts)
        if folder.is_absolute() and mount and (rank := _rank(mount, node.blocks)) is not None:
            ranked.setdefault(folder, rank)
    for mount in node.mounts:
        if _rank(mount, node.blocks) == 0 and mount.folder != "/":
            ranked.setdefault(Path(mount.folder), 0)
    writable = {own: rank for folder, rank in ranked.items() if (own := _writable(folder))}
    return sorted(writable, key=lambda folder: writable[folder])


def places(config: RunConfig, node: Node) -> Iterator[RunConfig]:
    """Yield the config with each folder for its files that is not beside the images, best first; the last is in `runs`.

    Files on a disk that is lost with its machine are written again while a run trains: those that it cannot write so
    are only in `runs`, which all nodes share. Folders that belong to others are omitted.
    """
    loader, images = config.dataloader, config.dataset.path
    assert isinstance(loader, FFCVLoader)
    if images is None or loader.train or loader.val or not FFCVDataset.of(config).may_be_written():
        return
    again = not loader.cannot_write(config)
    name = f"ffcv-{hashlib.sha256(os.fsencode(os.path.realpath(images))).hexdigest()[:12]}"
    for folder in [*(local_folders(node) if again else []), Path(config.runs).absolute()]:
        own = folder / f"{paths.OWN}{os.getuid()}" / name
        if not (os.path.lexists(own.parent) and not paths.is_own(own.parent)):
            yield replace(config, dataloader=replace(loader, folder=str(own), write_missing=again))


def here_again(config: RunConfig) -> RunConfig:
    """Return the config of a run with the folder of its files on this node, if these are in one of `places`.

    That is the folder where they are, else where they were if this user may create it again, else the first.
    """
    loader = config.dataloader
    if not isinstance(loader, FFCVLoader) or not paths.is_placed(loader.folder):
        return config
    others = list(places(config, Node.here()))
    usable = [one for one in others if one.dataloader == loader]
    there = [one for one in (*usable, *others) if FFCVDataset.of(one).are_written()]
    chosen = next(iter((*there, *usable, *others)), config)
    create(chosen)
    return chosen


def create(config: RunConfig) -> None:
    """Create the folder of files of one of `places`, which no other user can read; what cannot be created is not."""
    folder = FFCVDataset.of(config).path("train").parent
    with suppress(OSError):
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if paths.is_own(folder.parent):
            folder.parent.chmod(0o700)
            folder.mkdir(mode=0o700, exist_ok=True)


def _rank(mount: Mount, blocks: Path) -> int | None:
    """Return 0 for a disk of a rented machine, 1 for another NVMe disk, 2 for others; None for what is not local."""
    name = Path(os.path.realpath(mount.device)).name
    if not mount.device.startswith("/dev/") or network_of(mount.folder, Node([mount], blocks, {})):
        return None
    ranks = [_rank_of_disk(disk) for disk in _disks((blocks / name).resolve())]
    known = [rank for rank in ranks if rank is not None]
    return max(known) if ranks and len(known) == len(ranks) else None


def _disks(block: Path) -> Iterator[Path]:
    """Yield the disks of a block device: that of a partition, and those that a volume or RAID combines."""
    if (block / "partition").is_file():
        block = block.parent
    below = [*(block / "slaves").glob("*")]
    if below:
        for one in below:
            yield from _disks(one.resolve())
    elif block.is_dir():
        yield block


def _rank_of_disk(disk: Path) -> int | None:
    known, model = _known(), _text(disk / "device" / "model")
    is_far = "/session" in str(disk) or _text(disk / "device" / "transport") not in ("", "pcie")
    if not _DISK.match(disk.name) or model in known["remote"] or is_far or _text(disk / "queue" / "rotational") == "1":
        return None
    return 0 if model in known["instance"] else 1 if disk.name.startswith("nvme") else 2


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""


def _mount_of(path: Path, mounts: Sequence[Mount]) -> Mount | None:
    """Return the file system that has a path: the last one that is mounted nearest above it."""
    real = Path(os.path.realpath(path))
    above = [mount for mount in mounts if real.is_relative_to(mount.folder)]
    return max(enumerate(above), key=lambda one: (len(Path(one[1].folder).parts), one[0]))[1] if above else None


def _writable(folder: Path) -> Path | None:
    """Return the user's own folder in a folder, or else this one, in which files can be created; None without one."""
    with suppress(OSError, KeyError):  # note: a user of a container has no name
        own = folder / getpass.getuser()
        if own.is_dir() and os.access(own, os.W_OK | os.X_OK):
            return own
    return folder if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None


@cache
def _known() -> dict[str, Any]:
    return dict(read_mapping(paths.CONF / "disks.yaml"))
