"""Reading tar files without unpacking, compared with torchvision's unpacking and Python's."""

import gzip
import hashlib
import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from torchvision.datasets import ImageNet, imagenet

from launcher.data.sources.find import open_source
from launcher.data.workers import quiet
from launcher.errors import UserError

from ..conftest import write_files
from .downloads import add, contents, jpeg, report, write_devkit, write_downloads


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_downloads(tmp_path_factory.mktemp("downloads"))


@pytest.fixture(scope="module")
def unpacked(downloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files as torchvision unpacks them."""
    folder = tmp_path_factory.mktemp("unpacked")
    with pytest.MonkeyPatch.context() as patch:
        for kind, (name, _) in imagenet.ARCHIVE_META.items():
            shutil.copy(downloads / name, folder)
            digest = hashlib.md5((folder / name).read_bytes()).hexdigest()
            patch.setitem(imagenet.ARCHIVE_META, kind, (name, digest))
        for split in ("train", "val"):
            ImageNet(folder, split=split)
    for path in folder.glob("ILSVRC*"):
        path.unlink()
    return folder


@pytest.mark.parametrize("split", ["train", "val"])
def test_images_and_classes_are_those_that_torchvision_unpacks(downloads: Path, unpacked: Path, split: str) -> None:
    ours, theirs = open_source(str(downloads), split, report), open_source(str(unpacked), split, quiet)
    assert (ours.names, ours.classes) == (theirs.names, theirs.classes)
    assert contents(ours) == contents(theirs)


@pytest.fixture
def one_tar(tmp_path: Path) -> Path:
    """A tar file with class folders in a top folder."""
    path = tmp_path / "flowers.tar"
    with tarfile.open(path, "w") as tar:
        for split in ("train", "val"):
            for name in ("rose", "aster"):
                add(tar, f"flowers/{split}/{name}/{'x' * 120}.jpg", jpeg(len(name)))
                add(tar, f"flowers/{split}/{name}/1.jpg", jpeg(7 + len(name)))
                add(tar, f"flowers/{split}/{name}/._1.jpg", b"what another system leaves")
                add(tar, f"flowers/{split}/{name}/notes.txt", b"no image")
        link = tarfile.TarInfo("flowers/train/rose/again.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "flowers/train/rose/1.jpg"
        tar.addfile(link)
        outside = tarfile.TarInfo("flowers/train/rose/outside.jpg")
        outside.type, outside.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(outside)
        add(tar, "flowers/train/aster/1.jpg", jpeg(99))
    return path


def test_a_tar_file_of_class_folders_reads_as_if_unpacked(one_tar: Path, tmp_path: Path) -> None:
    with tarfile.open(one_tar) as tar:
        # note: an attribute, since Debian 12's Python has no argument for it
        tar.extraction_filter = lambda member, path: member
        tar.extractall(tmp_path)
    for split in ("train", "val"):
        ours = open_source(str(one_tar), split, report)
        assert contents(ours) == contents(open_source(str(tmp_path / "flowers"), split, quiet))
    write_files(one_tar, f"dataloader.folder={tmp_path / 'files'}")


def refusal(path: Path, split: str = "train") -> str:
    with pytest.raises(UserError) as raised:
        open_source(str(path), split, report)
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def test_a_damaged_tar_file_is_a_one_line_error(one_tar: Path) -> None:
    whole = one_tar.read_bytes()
    one_tar.write_bytes(gzip.compress(whole))
    assert "is compressed" in refusal(one_tar)
    one_tar.write_bytes(b"something else" * 100)
    assert "is not a complete tar file" in refusal(one_tar)
    one_tar.write_bytes(whole[:3000])
    assert "is not a complete tar file" in refusal(one_tar)
    second = whole.index(b"flowers/train/rose/1.jpg")
    one_tar.write_bytes(whole[: second + 148] + b"xxxxxxxx" + whole[second + 156 :])
    assert "is damaged at byte" in refusal(one_tar)
    one_tar.unlink()
    assert "no such file" in refusal(one_tar)


def test_a_member_of_negative_size_does_not_loop(tmp_path: Path) -> None:
    member = tarfile.TarInfo("flowers/train/rose/1.jpg")
    member.size = -512
    header = member.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "circle.tar").write_bytes(header + header)
    assert re.search("is damaged|is not a complete tar file", refusal(tmp_path / "circle.tar"))


def test_an_inner_tar_file_without_its_end_stops_before_the_next(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as train:
        for name in ("n01", "n02"):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                add(tar, f"{name}_1.JPEG", bytes(range(256)) * 2)
            add(train, f"{name}.tar", inner.getvalue()[:1024])
    assert open_source(str(tmp_path), "train", report).names == ["n01/n01_1.JPEG", "n02/n02_1.JPEG"]


def test_the_error_of_validation_images_shows_the_missing_file(downloads: Path, tmp_path: Path) -> None:
    shutil.copy(downloads / "ILSVRC2012_img_val.tar", tmp_path)
    assert "has neither a train/ folder" in refusal(tmp_path)
    assert "has no ILSVRC2012_devkit_t12.tar.gz" in refusal(tmp_path, "val")
    kit = tmp_path / "ILSVRC2012_devkit_t12.tar.gz"
    write_devkit(kit)
    with tarfile.open(tmp_path / "ILSVRC2012_img_val.tar", "a") as tar:
        add(tar, "ILSVRC2012_val_00000008.JPEG", jpeg(8))
    assert "has 8 images, but ILSVRC2012_devkit_t12.tar.gz lists 7" in refusal(tmp_path, "val")
    kit.write_bytes(kit.read_bytes()[:100])
    assert "cannot be read" in refusal(tmp_path, "val")
