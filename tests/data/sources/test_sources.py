"""Each source of images gives the samples, batches and fingerprint of the same images in class folders."""

import csv
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.ffcv.beton import read_manifest
from launcher.data.identity import identity
from launcher.data.inspection import inspect_data
from launcher.doctor.examine import examine_data

from ..conftest import make_loaders, same, stream, words_for, write_files
from .downloads import Images, listed, shards, webdataset


def tar_of_folders(folder: Path, to: Path) -> Path:
    with tarfile.open(to / "pets.tar", "w") as tar:
        for split in ("train", "val"):
            tar.add(folder / split, f"pets/{split}")
    return to / "pets.tar"


def zip_of_folders(folder: Path, to: Path) -> Path:
    with zipfile.ZipFile(to / "pets.zip", "w") as file:
        for number, (split, label, name, data) in enumerate(listed(folder, "train") + listed(folder, "val")):
            kind = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            file.writestr(f"pets/{split}/{label}/{name}", data, kind)
        file.writestr("__MACOSX/pets/train/cat/0.jpg", b"")
    return to / "pets.zip"


def split_column(folder: Path, to: Path) -> Path:
    with (to / "pets.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["label", "path", "split"])
        rows.writeheader()
        for split, label, name, _ in listed(folder, "train") + listed(folder, "val"):
            rows.writerow({"label": label, "path": folder / split / label / name, "split": split})
    return to / "pets.csv"


def tables(folder: Path, to: Path) -> Path:
    for split in ("train", "val"):
        (to / split).symlink_to(folder / split)
        rows = [{"file_name": f"{split}/{label}/{name}", "class": label} for _, label, name, _ in listed(folder, split)]
        (to / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return to / "train.jsonl"


def table_of(images: Images):  # type: ignore[no-untyped-def]
    """Return an Arrow table as Hugging Face's `datasets` writes it."""
    pyarrow = pytest.importorskip("pyarrow")
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", kind), ("label", pyarrow.int64())], metadata)
    rows = [
        {"image": {"bytes": data, "path": name}, "label": ["cat", "dog"].index(label)}
        for _, label, name, data in images
    ]
    return pyarrow.Table.from_pylist(rows, schema)


def parquet(folder: Path, to: Path) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    (to / "data").mkdir()
    for split, file in (("train", "train"), ("val", "validation")):
        for number, images in shards(listed(folder, split)):
            path = to / "data" / f"{file}-{number:05d}-of-00003.parquet"
            parquet.write_table(table_of(images), path, row_group_size=4)
    return to


def arrow(folder: Path, to: Path) -> Path:
    ipc = pytest.importorskip("pyarrow.ipc")
    for split in ("train", "val"):
        for number, images in shards(listed(folder, split)):
            table = table_of(images)
            with ipc.new_stream(str(to / f"pets-{split}-{number:05d}.arrow"), table.schema) as stream:
                stream.write_table(table, max_chunksize=5)
    return to


Write = Callable[[Path, Path], Path]
SOURCES = [webdataset, tar_of_folders, zip_of_folders, split_column, parquet, arrow]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=SOURCES, ids=lambda write: write.__name__)
def source(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return request.param(image_folder, tmp_path / "source")


def test_the_data_set_is_that_of_the_class_folders(source: Path, image_folder: Path) -> None:
    here, there = (inspect_data(compose(words_for(path)).config, must_exist=True) for path in (source, image_folder))
    assert here.classes == there.classes == ["cat", "dog"]
    assert [split.files for split in here.splits] == [split.files for split in there.splits]
    assert [split.labels.tolist() for split in here.splits] == [split.labels.tolist() for split in there.splits]
    assert identity(here.config) == identity(there.config)
    assert [finding.status for finding in examine_data(here.config)] == ["ok", "ok", "ok"]


def test_batches_are_those_of_the_class_folders_for_any_number_of_workers(source: Path, image_folder: Path) -> None:
    there = stream(make_loaders(source, "dataloader.workers=0"))
    # note: Parquet is read through copies, so its order is another
    if not (source / "data").is_dir():
        assert same(there, stream(make_loaders(image_folder, "dataloader.workers=0")))
    assert same(there, stream(make_loaders(source, "dataloader.workers=2")))
    assert same(there[3:5], stream(make_loaders(source, "dataloader.workers=0"), epochs=(0,), first=3))
    evaluated = [[*make_loaders(path, "dataloader.workers=0").evaluate] for path in (source, image_folder)]
    assert same(*evaluated)


def test_ffcv_files_have_the_bytes_of_those_of_the_class_folders(
    source: Path, image_folder: Path, tmp_path: Path
) -> None:
    train, val = write_files(source, f"dataloader.folder={tmp_path / 'ffcv'}")
    for ours, theirs in ((train, "train"), (val, "val")):
        (there,) = (image_folder / "ffcv").glob(f"{theirs}*.beton")
        assert ours.read_bytes() == there.read_bytes()
        assert read_manifest(ours) == read_manifest(there)
