"""FFCV files: their contents, errors, and resuming after an interruption."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.ffcv import beton, encoder, prepare, unfinished
from launcher.data.ffcv.beton import ROW, ROWS_START, manifest_path, open_beton, read_manifest
from launcher.data.ffcv.dataset import FFCVDataset, file_name
from launcher.errors import UserError
from tests.commands import output_of, refused
from tests.images import random_image

from .conftest import make_loaders, needs_ffcv, stream, words_for, write_files

FILES = compose(["dataloader=ffcv"]).config.dataloader.files  # type: ignore[union-attr]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Images that are not plain RGB JPEGs, but can be converted."""
    for split in ("train", "val"):
        for name in ("a", "b"):
            (tmp_path / split / name).mkdir(parents=True)
        for number in range(8):
            random_image(seed=number).save(tmp_path / split / "ab"[number // 7] / f"{number}.jpg")
    folder = tmp_path / "train" / "a"
    random_image().convert("CMYK").save(folder / "cmyk.jpg")
    random_image().convert("L").save(folder / "grey.jpg")
    random_image().convert("RGBA").save(folder / "alpha.png")
    random_image().convert("P").save(folder / "palette.png")
    random_image().save(folder / "png_inside.JPEG", "PNG")
    return tmp_path


def spoil(folder: Path) -> None:
    whole = (folder / "train" / "a" / "1.jpg").read_bytes()
    (folder / "train" / "a" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "train" / "a" / "empty.jpg").touch()
    (folder / "train" / "a" / "text.jpg").write_text("no image")


def test_unusual_images_are_converted_and_counted(odd: Path) -> None:
    train, _ = write_files(odd)
    manifest = read_manifest(train)
    assert (manifest.samples, manifest.classes, manifest.bytes) == (13, ["a", "b"], train.stat().st_size)
    assert manifest.values == dataclasses.asdict(FILES)
    assert manifest.converted == {"CMYK": 1, "L": 1, "RGBA": 1, "P": 1, "PNG named .jpeg": 1}
    assert len(stream(make_loaders(odd, "dataloader=ffcv", "dataset.train_samples=null"), epochs=(0,))) == 1


def test_unreadable_images_are_listed_or_skipped_and_repaired_ones_added(odd: Path) -> None:
    spoil(odd)
    with pytest.raises(UserError, match=r"3 of 16 images .* a/cut.jpg .* a/empty.jpg .* a/text.jpg .*skip_bad=true"):
        write_files(odd)
    assert not list(odd.glob("ffcv/*.beton"))
    train, _ = write_files(odd, f"dataloader.folder={odd / 'skipped'}", "dataset.skip_bad=true")
    manifest = read_manifest(train)
    assert (manifest.samples, sorted(manifest.skipped)) == (13, ["a/cut.jpg", "a/empty.jpg", "a/text.jpg"])
    for name in ("cut", "empty", "text"):
        random_image(20, 30).save(odd / "train" / "a" / f"{name}.jpg")
    heights = open_beton(write_files(odd)[0]).rows["f0"]["height"]
    assert [name for name, height in zip(names(odd), heights, strict=True) if height == 20] == [
        "cut.jpg", "empty.jpg", "text.jpg",
    ]  # fmt: skip


def names(folder: Path) -> list[str]:
    return [path.name for path in sorted((folder / "train").glob("*/*"))]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [1, 13, 30, 42])
def test_an_interrupted_file_resumes_to_the_same_bytes(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(beton, "_LEAST_PAGE", 1 << 14)
    words = words_for(image_folder, "dataloader=ffcv", "dataloader.files.max_side=48", "dataloader.workers=1")
    whole = write_files(image_folder, *words[4:], f"dataloader.folder={tmp_path / 'whole'}")[0]

    def interrupt(what: str, done: int, total: int) -> None:
        if done == after:
            raise Interrupted

    config = compose([*words, f"dataloader.folder={tmp_path / 'parts'}"]).config
    with pytest.raises(Interrupted):
        list(prepare.prepare(FFCVDataset.of(config), interrupt))
    assert not list((tmp_path / "parts").glob("*.beton"))
    encoded: list[int] = []
    real = encoder.encode_all
    monkeypatch.setattr(
        encoder,
        "encode_all",
        lambda files, items, **options: encoded.extend(dict(items)) or real(files, items, **options),
    )
    train = next(iter(prepare.prepare(FFCVDataset.of(config), lambda *_: None)))[0]
    assert train.read_bytes() == whole.read_bytes()
    assert len(encoded) <= 42 - after + 8
    assert sorted(path.name for path in train.parent.iterdir()) == [train.name, manifest_path(train).name]


def test_existing_files_are_not_rewritten(image_folder: Path) -> None:
    train = image_folder / "ffcv" / file_name("train", FILES)
    before = train.stat().st_mtime_ns
    assert write_files(image_folder)[0] == train
    assert train.stat().st_mtime_ns == before


@pytest.mark.parametrize("below", ["", "files"])
def test_a_file_in_the_place_of_the_folder_is_refused(image_folder: Path, tmp_path: Path, below: str) -> None:
    (file := tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"dataloader.folder=.*: is a file, or below one; choose a folder"):
        write_files(image_folder, f"dataloader.folder={file / below}")


def test_one_process_at_a_time_writes_a_file(image_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / file_name("train", FILES)
    other = unfinished.UnfinishedFile(target, 3, max_side=64, identity="x")
    with other.alone(), pytest.raises(UserError, match="another process is writing"):
        write_files(image_folder, f"dataloader.folder={tmp_path}")
    assert target in write_files(image_folder, f"dataloader.folder={tmp_path}")


def test_an_unfinished_file_of_an_earlier_version_starts_again(image_folder: Path, tmp_path: Path) -> None:
    name = file_name("train", FILES)
    (tmp_path / f"{name}.partial").write_bytes(bytes(1 << 24))
    train = write_files(image_folder, f"dataloader.folder={tmp_path}")[0]
    assert train.read_bytes() == (image_folder / "ffcv" / name).read_bytes()


@pytest.mark.parametrize("of", ["file", "images"])
@pytest.mark.parametrize("part", ["label", "image", "table"])
def test_a_check_finds_one_changed_bit_also_of_older_files(
    image_folder: Path, tmp_path: Path, of: str, part: str
) -> None:
    words = [*words_for(image_folder, "dataloader=ffcv"), f"dataloader.folder={tmp_path}"]
    train = write_files(image_folder, *words[2:])[0]
    file = open_beton(train)
    if of == "file":
        older = json.loads(manifest_path(train).read_text())
        older |= {"sha256": hashlib.sha256(train.read_bytes()).hexdigest()}
        del older["sha256_of"]
        manifest_path(train).write_text(json.dumps(older))
    assert output_of("prepare", *words, "--check").count("checksums match") == 2
    data = bytearray(train.read_bytes())
    last_label, last_size = ROWS_START + file.samples * ROW.itemsize - 8, len(data) - 8
    data[{"label": last_label, "image": int(file.pieces["place"][-1]), "table": last_size}[part]] ^= 1
    train.write_bytes(data)
    assert "is damaged (wrong checksum)" in refused("prepare", *words, "--check")


@needs_ffcv
@pytest.mark.parametrize(("share", "mode"), [(1.0, "jpg"), (0.0, "raw")])
def test_files_are_ffcvs_byte_by_byte(odd: Path, tmp_path: Path, share: float, mode: str) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    ours = write_files(odd, f"dataloader.files.jpeg_share={share}", "dataloader.files.max_side=45")[0]
    paths = sorted((odd / "train").rglob("*.*"))
    samples = [(np.asarray(Image.open(path).convert("RGB")), "ab".index(path.parent.name)) for path in paths]
    fields = {"image": RGBImageField(mode, max_resolution=45, jpeg_quality=FILES.quality), "label": IntField()}
    DatasetWriter(str(tmp_path / "theirs.beton"), fields, num_workers=1).from_indexed_dataset(samples)
    assert ours.read_bytes() == (tmp_path / "theirs.beton").read_bytes()


@needs_ffcv
def test_we_read_what_ffcv_writes(tmp_path: Path) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    samples = [(np.asarray(random_image(40, 50, seed)), seed % 2) for seed in range(16)]
    for name in ("t", "v"):
        writer = DatasetWriter(
            str(tmp_path / f"{name}.beton"), {"image": RGBImageField("jpg"), "label": IntField()}, num_workers=1
        )
        writer.from_indexed_dataset(samples)
    words = [f"dataloader.train={tmp_path}/t.beton", f"dataloader.val={tmp_path}/v.beton"]
    batches = stream(make_loaders(Path("/nowhere"), "dataloader=ffcv", *words), epochs=(0,))
    assert [labels.tolist() for _, labels, _ in batches] == [(indices % 2).tolist() for _, _, indices in batches]


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "is not an FFCV file": lambda data: b"something else entirely, of some length",
    "is not an FFCV file of version": lambda data: b"",
    "is incomplete": lambda data: data[:16] + bytes(8) + data[24:],
    "is truncated": lambda data: data[: int.from_bytes(data[16:24], "little") - 100],
    "is truncated or changed": lambda data: data[:-24],
    "has the fields": lambda data: data.replace(b"label\0", b"other\0", 1),
}


@pytest.mark.parametrize("expected", BROKEN)
def test_a_damaged_file_is_a_one_line_error(image_folder: Path, tmp_path: Path, expected: str) -> None:
    good = image_folder / "ffcv" / file_name("train", FILES)
    path = tmp_path / "x.beton"
    path.write_bytes(BROKEN[expected](good.read_bytes()))
    words = words_for(image_folder, "dataloader=ffcv", f"dataloader.train={path}")
    with pytest.raises(UserError, match=expected) as raised:
        make_loaders(image_folder, *words[4:])
    assert str(raised.value).count("\n") == 0
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dataset=imagenet"], "dataloader.folder=null: missing"),
        (["dataset=imagenet", "dataset.path=/nowhere"], "dataset.path=/nowhere: not a folder"),
        (["dataset=imagenet", "dataset.path=/nowhere", "--check"], "or type: train prepare dataset=imagenet"),
        (["dataset=imagenet", "dataset.path=/no where", "--check"], "dataset=imagenet dataset.path='/no where'"),
        (["dataset=shapes", "dataloader=torchvision"], "dataloader=torchvision: needs no files"),
        (["dataset=shapes", "dataloader.train=x.beton"], "points to an existing file"),
        (["dataset=shapes", "dataloader.files.quality=200"], "must be at most 100"),
    ],
)
def test_a_wrong_value_is_a_one_line_error(words: list[str], expected: str) -> None:
    errors = refused("prepare", *words)
    assert expected in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("longest", "size"), [(16, 1 << 23), (500, 1 << 23), (1672, 1 << 23), (1673, 1 << 24)])
def test_a_page_holds_any_image(longest: int, size: int) -> None:
    assert beton.page_size(longest) == size >= 3 * longest**2
