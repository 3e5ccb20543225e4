"""`dataloader=auto` with images on a network: files are written on a local disk, and again if it is lost."""

import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.config.resolved import read
from launcher.data.ffcv import places
from launcher.launch import files_first
from launcher.records.run_folder import RunFolder
from tests.counted_steps import worthwhile
from tests.images import write_images
from tests.runs import Train, ended, same

pytestmark = pytest.mark.system

RUN = [
    *("recipe=mild", "model=resnet18", "epochs=2", "batch_size=16", "eval_batch_size=8", "schedule.fit=on"),
    *("dataset=image_folder", "dataset.path=images", "dataset.native_size=32", "dataloader.workers=1"),
    *("launch=cpu", "launch.nproc=1", "logger.tensorboard=false", "algorithms.ema=off"),
]


def here() -> places.Node:
    """Return a node with the images of the working folder on NFS, and all else on an NVMe disk."""
    folder = Path.cwd()
    mounts = [places.Mount("/", "/dev/nvme0n1", "ext4"), places.Mount(str(folder / "images"), "server:/export", "nfs4")]
    return places.Node(mounts, folder / "sys", os.environ)


def on_a_network() -> None:
    places.Node.here = staticmethod(here)  # type: ignore[method-assign, assignment]


def read_only() -> None:
    """Make the folder of the images read-only."""
    files_first._may_write = lambda config: False


def full_disks() -> None:
    """Make images read-only, and all disks full."""
    read_only()
    files_first.shutil = SimpleNamespace(disk_usage=lambda path: SimpleNamespace(total=10**12, free=0))  # type: ignore[assignment]


def test_images_are_read_where_no_disk_has_room(train: Train) -> None:
    write_images(train.folder / "images", {"train": 16, "val": 4})
    gpu = replace(train, around=(worthwhile, on_a_network, full_disks))
    assert "reading the images: FFCV files would save" in (output := gpu("doctor", *RUN).stdout)
    assert "and the disk has 0.0; set dataloader.folder to another" in output


def test_two_nodes_write_once_beside_the_run_where_the_images_are_read_only(train: Train) -> None:
    write_images(train.folder / "images", {"train": 104, "val": 9})
    gpu = replace(train, around=(worthwhile, on_a_network, read_only))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        words = [*RUN, "launch.nnodes=2", f"launch.rdzv=127.0.0.1:{free.getsockname()[1]}", "run_name=both"]
    gpu.environment["SLURM_TMPDIR"] = str(train.folder)
    nodes = [gpu.start(*words) for _ in range(2)]
    assert all("so they are written first" in ended(one)[0] for one in nodes)
    loader = read(RunFolder(train.folder / "runs" / "both").config).dataloader
    assert Path(loader.folder).parents[1] == train.folder / "runs"  # type: ignore[attr-defined]
    assert len([*Path(loader.folder).glob("*.beton")]) == 2  # type: ignore[attr-defined]


def test_files_are_written_on_a_local_disk_and_again_by_a_resume_after_it_is_lost(train: Train) -> None:
    images = write_images(train.folder / "images", {"train": 104, "val": 9})
    first, second = train.folder / "job-1", train.folder / "job-2"
    first.mkdir()
    (train.folder / "sys" / "nvme0n1").mkdir(parents=True)
    gpu = replace(train, around=(worthwhile, on_a_network))

    def folder_of(run: str) -> Path:
        loader = read(RunFolder(train.folder / "runs" / run).config).dataloader
        return Path(loader.folder)  # type: ignore[attr-defined]

    def files(folder: Path) -> list[str]:
        return sorted(path.name.partition("-")[0] for path in folder.glob("*/*/*.beton"))

    gpu.environment["SLURM_TMPDIR"] = str(first)
    words = "they are not beside the images, which are on nfs4; dataloader.folder=FOLDER chooses another place"
    assert words in gpu("doctor", *RUN).stdout
    output = gpu(*RUN, "run_name=run").stdout
    assert words in output
    assert f"note: {folder_of('run')}: FFCV files would save" in output
    assert (files(first), (images / "ffcv").exists()) == (["train", "val"], False)
    assert folder_of("run").is_relative_to(first)
    assert folder_of("run").parent.stat().st_mode & 0o777 == 0o700
    assert "written first" not in gpu(*RUN, "run_name=other", "seed=7").stdout
    assert folder_of("other") == folder_of("run")
    image = next(images.glob("train/*/*"))
    before = image.read_bytes()
    image.write_bytes(before + b"more")
    assert "has other images or rotations; remove it" in gpu(*RUN, "run_name=changed", "epochs=1").stdout
    assert read(RunFolder(train.folder / "runs" / "changed").config).dataloader.name == "torchvision"
    image.write_bytes(before)
    shutil.copytree(train.folder / "runs" / "run", train.folder / "runs" / "whole")
    gpu("resume", "runs/whole", "epochs=3")
    shutil.rmtree(first)
    second.mkdir()
    gpu.environment["SLURM_TMPDIR"] = str(second)
    gpu("resume", "runs/run", "epochs=3")
    assert folder_of("run").is_relative_to(second)
    assert list(second.glob("*/*/train*"))
    gpu("eval", "runs/run")
    assert same(train.decided(train.folder / "runs" / "run"), train.decided(train.folder / "runs" / "whole"))
