"""Buckets and URLs: fsspec's memory, and a web server that works, fails at first, or is gone."""

import os
import shutil
import sys
from pathlib import Path

import fsspec
import pytest

from launcher.config.compose import compose
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.data.identity import identity
from launcher.data.index import Piece
from launcher.data.inspection import inspect_data
from launcher.data.sources import source as source_module
from launcher.data.sources.find import open_source
from launcher.data.sources.reading import local_copy, read
from launcher.data.workers import quiet
from launcher.doctor.examine import examine_data
from launcher.errors import UserError
from launcher.installation import how_to_add
from tests.commands import refused

from ..conftest import inspected, make_loaders, same, stream, words_for
from .downloads import contents, in_memory, report, webdataset, write_downloads
from .web import serve


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PAUSES", (0.0, 0.0, 0.0))


def write_url(url: str, *more: str) -> list[Path]:
    """Run `train prepare` for a URL, without its terminal."""
    words = [words_for(Path())[0], f"dataset.path={url}", "dataloader=ffcv", "dataloader.workers=1", *more]
    return [path for path, _ in prepare(FFCVDataset.of(compose(words).config), lambda *_: None)]


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_bucket_of_class_folders_equals_the_folders(image_folder: Path, split: str) -> None:
    here = open_source(str(image_folder), split, quiet)
    for url in (in_memory(image_folder), f"file://{image_folder}"):
        there = open_source(url, split, report)
        assert (there.names, there.classes, there.root) == (here.names, here.classes, url)
        assert contents(there) == contents(here)
    with serve(image_folder, ranges=False) as url:
        assert contents(open_source(url, split, report)) == contents(here)


def test_training_reads_class_folders_of_a_bucket_as_those_of_a_disk(image_folder: Path) -> None:
    url: Path = in_memory(image_folder)  # type: ignore[assignment]
    here, there = (inspected(path).config for path in (image_folder, url))
    assert identity(here) == identity(there)
    assert [finding.status for finding in examine_data(there)] == ["ok"] * 4
    streams = [stream(make_loaders(path, "dataloader.workers=0")) for path in (image_folder, url)]
    assert same(*streams)
    assert same(*([*make_loaders(path, "dataloader.workers=0").evaluate] for path in (image_folder, url)))


def test_an_unreadable_image_of_a_bucket_is_skipped_or_ends_the_run(image_folder: Path) -> None:
    url: Path = in_memory(image_folder)  # type: ignore[assignment]
    fsspec.filesystem("memory").pipe_file(f"{url}/train/cat/0.jpg", b"no image")
    config = compose(words_for(url, "dataset.skip_bad=true")).config
    assert {*inspect_data(config, must_exist=True).skipped} == {"train/cat/0.jpg"}
    with pytest.raises(UserError, match=rf"^{url}/train/cat/0.jpg cannot be read as an image"):
        stream(make_loaders(url, "dataloader.workers=0"))


@pytest.mark.parametrize(("url", "package"), [("gs://mine/x", "gcsfs"), ("hf://datasets/me/x", "huggingface_hub")])
def test_a_missing_package_is_a_one_line_error(url: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for verb in ("run", "plan"):
        errors = refused(verb, f"dataset.path={url}", "dataset=image_folder")
        assert f"dataset.path={url}: needs a package that is not installed (" in errors
        assert errors.endswith(f"; run {how_to_add(package)}\n")


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_bucket_of_imagenets_files_is_read_in_ranges(tmp_path: Path, split: str) -> None:
    write_downloads(tmp_path)
    here = contents(open_source(str(tmp_path), split, report))
    assert contents(open_source(in_memory(tmp_path), split, report)) == here
    with serve(tmp_path) as url:
        assert contents(open_source(url, split, report)) == here


def test_ffcv_files_of_a_url_equal_the_folders_and_train(image_folder: Path, tmp_path: Path) -> None:
    with serve(image_folder) as url:
        train, _ = write_url(url, f"dataloader.folder={tmp_path}")
    (here,) = (image_folder / "ffcv").glob("train*.beton")
    assert train.read_bytes() == here.read_bytes()
    words = words_for(Path(), f"dataset.path={url}", "dataloader=ffcv", f"dataloader.folder={tmp_path}")
    config = compose([words[0], *words[2:]]).config
    assert inspect_data(config, must_exist=True).config.dataset.train_samples == 42
    assert str(tmp_path) in next(examine_data(config)).observation


def test_a_failed_read_is_retried(image_folder: Path) -> None:
    here = contents(open_source(str(image_folder), "val", quiet))
    with serve(image_folder, {"0.jpg": 3, "5.jpg": 1}) as url:
        assert contents(open_source(url, "val", report)) == here


@pytest.mark.parametrize("is_dated", [True, False])
def test_a_changed_shard_of_a_server_without_checksums_is_read_again(
    image_folder: Path, tmp_path: Path, is_dated: bool
) -> None:
    def copied() -> tuple[Piece, list[bytes]]:
        source = open_source(url, "val", report)
        return source.piece(0), [read(source.piece(number)) for number in range(len(source))]

    webdataset(image_folder, tmp_path)
    with serve(tmp_path, is_dated=is_dated) as url:
        first, old = copied()
        shard, size = tmp_path / Path(first.file).name, first.size or 0
        data = bytearray(shard.read_bytes())
        data[first.start + size - 9 : first.start + size] = bytes(9)
        shard.write_bytes(data)
        os.utime(shard, (1e9, 1e9))
        new = copied()[1]
        assert new == [old[0][:-9] + bytes(9), *old[1:]]
        with pytest.raises(UserError, match="has changed since it was listed"):
            local_copy(first.file, first.version.replace("-", "-0"))


def test_failed_reads_of_headers_are_retried(tmp_path: Path) -> None:
    write_downloads(tmp_path)
    with serve(tmp_path, {"ILSVRC2012_img_val.tar": 3}) as url:
        assert len(open_source(url, "val", report).names) == 7


def test_denied_access_is_one_line_at_once(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_PAUSES", (100.0,))
    denied = r"access denied \(403.*\); check your credentials and permissions"
    with serve(image_folder, {"0.jpg": 1000, "status": 403}) as url, pytest.raises(UserError, match=denied):
        contents(open_source(url, "val", report))


def test_a_short_answer_becomes_no_part_of_a_copy(image_folder: Path, tmp_path: Path) -> None:
    webdataset(image_folder, tmp_path)
    failures = {"shorter": 0}
    with serve(tmp_path, failures) as url:
        piece = open_source(url, "val", report).piece(0)
        failures["shorter"] = 9
        with pytest.raises(UserError, match=r"received [0-9,]+ of [0-9,]+ bytes"):
            read(piece)
        failures["shorter"] = 0
        assert read(piece).startswith(b"\xff\xd8")


def test_a_lost_server_is_a_one_line_error_and_the_same_command_resumes(image_folder: Path, tmp_path: Path) -> None:
    with serve(image_folder, {"20.jpg": 1000}) as url:
        lost = open_source(url, "train", report)
        with pytest.raises(UserError, match=r"503.*run the same command to resume") as raised:
            contents(lost)
        assert str(raised.value).startswith(f"dataset.path={url}: ")
    with pytest.raises(UserError, match="ClientConnectorError"):
        write_url(url, f"dataloader.folder={tmp_path}")


def test_a_missing_image_is_unreadable(image_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(image_folder, tmp_path / "p", ignore=shutil.ignore_patterns("ffcv"))
    with serve(tmp_path / "p") as url:
        source = open_source(url, "val", report)
        (tmp_path / "p" / "val" / "cat" / "3.jpg").unlink()
        assert str(contents(source)["cat/3.jpg"][1]) == "no such file"


def test_a_server_without_range_requests_is_refused(tmp_path: Path) -> None:
    write_downloads(tmp_path)
    with serve(tmp_path, ranges=False) as url, pytest.raises(UserError, match="support range requests"):
        open_source(url, "train", report)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("prepare s3://b/x", "dataloader.folder=null: missing, and FFCV files cannot be written to s3://b/x"),
        ("prepare abfs://b/x dataloader.folder=f", "abfs://b/x: needs a package that is not installed (Install adlfs"),
        ("prepare nope://b/x dataloader.folder=f", "Protocol not known: nope"),
        ("run memory://none", "has neither train/CLASS/*.jpg nor archives (.tar"),
        ("run /x.tar", "not a folder; set"),
    ],
)
def test_a_wrong_value_is_a_one_line_error(
    line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verb, path, *rest = line.split()
    errors = refused(verb, *words_for(Path())[:1], f"dataset.path={path}", *rest)
    assert expected in errors
    assert errors.count("\n") == 1
