"""Each source of images gives the samples, batches and fingerprint of the same images in class folders."""

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.data.ffcv.beton import read_manifest
from launcher.data.identity import identity
from launcher.doctor.examine import examine_data

from ..conftest import inspected, make_loaders, same, stream, write_files
from .downloads import arrow, parquet, split_column, tar_of_folders, webdataset, zip_of_folders

Write = Callable[[Path, Path], Path]
SOURCES = [webdataset, tar_of_folders, zip_of_folders, split_column, parquet, arrow]


@pytest.fixture(params=SOURCES, ids=lambda write: write.__name__)
def source(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return request.param(image_folder, tmp_path / "source")


def test_the_data_set_is_that_of_the_class_folders(source: Path, image_folder: Path) -> None:
    here, there = (inspected(path) for path in (source, image_folder))
    assert here.classes == there.classes == ["cat", "dog"]
    assert [split.names for split in here.splits] == [split.names for split in there.splits]
    assert [split.labels.tolist() for split in here.splits] == [split.labels.tolist() for split in there.splits]
    assert identity(here.config) == identity(there.config)
    assert [finding.status for finding in examine_data(here.config)] == ["ok"] * 4


def test_batches_are_those_of_the_class_folders_for_any_number_of_workers(source: Path, image_folder: Path) -> None:
    there = stream(make_loaders(source, "dataloader.workers=0"))
    # note: Parquet is read through copies, so its order is another
    if not (source / "data").is_dir():
        assert same(there, stream(make_loaders(image_folder, "dataloader.workers=0")))
    assert same(there, stream(make_loaders(source, "dataloader.workers=2")))
    assert same(there[3:5], stream(make_loaders(source, "dataloader.workers=0"), epochs=(0,), first=3))
    loaders = [make_loaders(path, "dataloader.workers=0").evaluate for path in (source, image_folder)]
    assert same(*map(list, loaders))


def test_ffcv_files_have_the_bytes_of_those_of_the_class_folders(
    source: Path, image_folder: Path, tmp_path: Path
) -> None:
    train, val = write_files(source, f"dataloader.folder={tmp_path / 'ffcv'}")
    for ours, theirs in ((train, "train"), (val, "val")):
        (there,) = (image_folder / "ffcv").glob(f"{theirs}*.beton")
        assert ours.read_bytes() == there.read_bytes()
        assert read_manifest(ours) == read_manifest(there)
