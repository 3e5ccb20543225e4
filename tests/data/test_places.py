"""Where a run writes FFCV files: folders on local disks, by the tables of mounts and block devices of a node."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import paths
from launcher.config.compose import compose
from launcher.config.resolved import fingerprint
from launcher.config.schema import RunConfig
from launcher.data.ffcv import places as choosing
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.places import Mount, Node, create, here_again, local_folders, network_of, places
from launcher.data.ffcv.prepare import prepare
from launcher.data.workers import quiet
from tests.configs import with_values
from tests.images import write_images

INSTANCE = "Amazon EC2 NVMe Instance Storage"


def disk(blocks: Path, name: str, model: str = "", *, rotational: int = 0, transport: str = "pcie") -> Path:
    """Write what /sys has of a disk."""
    folder = blocks / name
    for part, text in (("device/model", f"{model}  \n"), ("queue/rotational", f"{rotational}\n")):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text(text)
    if name.startswith("nvme"):
        (folder / "device" / "transport").write_text(transport)
    return folder


def mounted(tmp_path: Path, *mounts: tuple[str, str, str], **environment: str) -> Node:
    """Return a node with file systems at folders below a path, which exist, and variables with such folders."""
    for folder, *_ in mounts:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    own = [Mount(str(tmp_path / folder), device, kind) for folder, device, kind in mounts]
    variables = {name: str(tmp_path / folder) for name, folder in environment.items()}
    return Node([Mount("/", "/dev/root", "ext4"), *own], tmp_path / "sys", variables)


@pytest.mark.parametrize(
    ("kind", "is_far"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs", "cifs", "virtiofs", "fuse")),
        *((kind, True) for kind in ("fuse.s3fs", "fuse.gcsfuse", "fuse.sshfs")),
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs")),
    ],
)
def test_file_systems_of_other_machines_are_known(kind: str, is_far: bool, tmp_path: Path) -> None:
    node = mounted(tmp_path, ("data", "server:/export", kind), ("data/below", "/dev/sda1", "xfs"))
    assert network_of(str(tmp_path / "data" / "imagenet"), node) == (kind if is_far else None)
    assert network_of(str(tmp_path / "data" / "below" / "imagenet"), node) is None
    assert network_of("s3://bucket/images", node) is None
    later = Node([*node.mounts, Mount(str(tmp_path / "data"), "/dev/sdb1", "ext4")], node.blocks, {})
    assert network_of(str(tmp_path / "data"), later) is None


def test_a_link_to_a_network_file_system_is_there(tmp_path: Path) -> None:
    node = mounted(tmp_path, ("data", "server:/export", "nfs4"))
    (tmp_path / "images").symlink_to(tmp_path / "data")
    assert network_of(str(tmp_path / "images"), node) == "nfs4"


@pytest.mark.parametrize(
    ("name", "model", "facts", "named", "anywhere"),
    [
        ("nvme1n1", INSTANCE, {}, True, True),
        ("nvme0n1", "Amazon Elastic Block Store", {}, False, False),
        ("nvme0n1", "nvme_card", {}, True, True),
        ("nvme0n1", "nvme_card-pd", {}, False, False),
        ("sda", "PersistentDisk", {}, False, False),
        ("nvme0n1", "Microsoft NVMe Direct Disk v2", {}, True, True),
        ("nvme0n1", "MSFT NVMe Accelerator v1.0", {}, False, False),
        ("nvme0n1", "Samsung SSD 990 PRO 4TB", {}, True, False),
        ("nvme0n1", "Linux", {"transport": "tcp"}, False, False),
        ("sda", "INTEL SSDSC2KB96", {}, True, False),
        ("sda", "ST4000NM0033", {"rotational": 1}, False, False),
        ("vda", "", {}, True, False),
        ("rbd0", "", {}, False, False),
        ("loop0", "", {}, False, False),
    ],
)
def test_a_disk_is_local_by_its_model(
    name: str, model: str, facts: Mapping[str, int | str], named: bool, anywhere: bool, tmp_path: Path
) -> None:
    disk(tmp_path / "sys", name, model, **facts)  # type: ignore[arg-type]
    node = mounted(tmp_path, ("disk", f"/dev/{name}", "ext4"))
    assert local_folders(node) == [tmp_path / "disk"] * anywhere
    node = mounted(tmp_path, ("disk", f"/dev/{name}", "ext4"), SLURM_TMPDIR="disk")
    assert local_folders(node) == [tmp_path / "disk"] * named


def test_the_fastest_is_first_and_memory_and_unknown_folders_are_none(tmp_path: Path) -> None:
    blocks = tmp_path / "sys"
    disk(blocks, "sda", "INTEL SSDSC2KB96")
    disk(blocks, "nvme0n1", "Samsung SSD 990 PRO 4TB")
    disk(blocks, "nvme1n1", INSTANCE)
    mounts = [("shm", "tmpfs", "tmpfs"), ("ssd", "/dev/sda", "xfs"), ("nvme", "/dev/nvme0n1", "xfs")]
    node = mounted(tmp_path, *mounts, ("opt", "/dev/nvme1n1", "xfs"), SLURM_TMPDIR="ssd", TMPDIR="nvme")
    assert local_folders(node) == [tmp_path / name for name in ("opt", "nvme", "ssd")]
    assert local_folders(mounted(tmp_path, *mounts, SLURM_TMPDIR="shm", TMPDIR="ssd/none")) == []


def test_partitions_and_raids_are_as_local_as_each_of_their_disks(tmp_path: Path) -> None:
    blocks = tmp_path / "sys"
    first, second = disk(blocks, "nvme1n1", INSTANCE), disk(blocks, "nvme2n1", INSTANCE)
    (first / "nvme1n1p1").mkdir()
    (first / "nvme1n1p1" / "partition").write_text("1\n")
    (blocks / "nvme1n1p1").symlink_to(first / "nvme1n1p1")
    (blocks / "md0" / "slaves").mkdir(parents=True)
    (blocks / "md0" / "slaves" / "nvme1n1p1").symlink_to(first / "nvme1n1p1")
    (blocks / "md0" / "slaves" / "nvme2n1").symlink_to(second)
    node = mounted(tmp_path, ("raid", "/dev/md0", "xfs"), ("part", "/dev/nvme1n1p1", "xfs"))
    assert local_folders(node) == [tmp_path / "raid", tmp_path / "part"]
    (second / "device" / "model").write_text("Amazon Elastic Block Store")
    assert local_folders(node) == [tmp_path / "part"]


def test_the_users_own_folder_on_a_shared_disk_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    disk(tmp_path / "sys", "nvme0n1", INSTANCE)
    node = mounted(tmp_path, ("scratch", "/dev/nvme0n1", "xfs"))
    (tmp_path / "scratch" / "ada").mkdir()
    assert local_folders(node) == [tmp_path / "scratch" / "ada"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Return a config of images on a network, on a node with one local disk."""
    images = write_images(tmp_path / "images", {"train": 4, "val": 2})
    disk(tmp_path / "sys", "nvme0n1", INSTANCE)
    node = mounted(tmp_path, ("images", "server:/export", "nfs4"), ("nvme", "/dev/nvme0n1", "xfs"))
    monkeypatch.setattr(choosing.Node, "here", lambda: node)
    words = ["recipe=mild", "dataset=image_folder", f"dataset.path={images}", f"runs={tmp_path / 'runs'}"]
    return compose([*words, "dataloader=ffcv", "dataloader.workers=1"]).config


def folder_of(config: RunConfig) -> Path:
    return FFCVDataset.of(config).path("train").parent


def test_the_folder_is_of_the_images_and_of_no_other_user(config: RunConfig, tmp_path: Path) -> None:
    local, beside_run = places(config, Node.here())
    folder = folder_of(local)
    assert folder.parent == tmp_path / "nvme" / f"train-launcher-{os.getuid()}"
    assert folder_of(beside_run).parent.parent == tmp_path / "runs"
    assert paths.is_placed(folder)
    other = replace(config, dataset=replace(config.dataset, path=str(tmp_path / "others")))
    assert folder_of(next(places(other, Node.here()))) != folder
    create(local)
    assert [one.stat().st_mode & 0o777 for one in (folder, folder.parent)] == [0o700, 0o700]
    spoiled = [lambda: folder.parent.chmod(0o777), lambda: link_instead(folder.parent, tmp_path)]
    if os.getuid() == 0:
        spoiled.insert(0, lambda: os.chown(folder.parent, 12345, -1))
    folder.rmdir()
    for spoil in spoiled:
        folder.parent.rmdir()
        folder.parent.mkdir(mode=0o700)
        spoil()
        assert [folder_of(one) for one in places(config, Node.here())] == [folder_of(beside_run)]
        create(local)
        assert not folder.exists()


def link_instead(folder: Path, target: Path) -> None:
    folder.rmdir()
    folder.symlink_to(target)


@pytest.mark.parametrize(
    "change",
    [
        {"dataset.skip_bad": True},
        {"launch.nnodes": 2},
        {"dataloader.files.small_side": 160},
    ],
)
def test_files_that_cannot_be_written_again_are_on_no_disk_of_one_node(
    change: dict[str, object], config: RunConfig
) -> None:
    (place,) = places(with_values(config, change), Node.here())
    assert folder_of(place).is_relative_to(config.runs)
    assert not place.dataloader.write_missing  # type: ignore[attr-defined]
    assert here_again(place) == place


@pytest.mark.parametrize(
    "change", [{"dataset.path": "s3://mine/pets"}, {"dataset.path": None}, {"dataloader.train": "mine.beton"}]
)
def test_images_whose_files_are_not_written_have_no_other_place(change: dict[str, object], config: RunConfig) -> None:
    assert list(places(with_values(config, change), Node.here())) == []


def test_a_resume_finds_or_replaces_the_folder_and_other_seeds_read_it(config: RunConfig, tmp_path: Path) -> None:
    local, beside_run = places(config, Node.here())
    assert here_again(config) == config
    assert here_again(local) == local
    gone = replace(local.dataloader, folder=folder_of(local).as_posix().replace("/nvme/", "/nvme-of-another-node/"))
    moved = here_again(replace(local, dataloader=gone))
    assert moved == local
    assert fingerprint(moved) == fingerprint(beside_run)
    assert fingerprint(moved) != fingerprint(config)
    for _ in prepare(FFCVDataset.of(beside_run), quiet):
        pass
    assert here_again(local) == beside_run
    words = ["recipe=mild", "dataset=image_folder", f"dataset.path={config.dataset.path}", f"runs={config.runs}"]
    composed = compose([*words, "seed=5", "dataloader.workers=1"])
    assert composed.config.dataloader == beside_run.dataloader
    assert any(f"reading the FFCV files in {folder_of(beside_run)}" in note for note in composed.notes)
    next((tmp_path / "images" / "train").glob("*/*")).unlink()
    later = time.time() + 10
    for folder in (tmp_path / "images" / "train").iterdir():
        os.utime(folder, (later, later))
    assert compose([*words, "dataloader.workers=1"]).config.dataloader.name == "torchvision"
