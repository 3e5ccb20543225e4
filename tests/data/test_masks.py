"""Masks as people have them: in several layouts and formats, with missing, damaged and unusual ones."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from launcher.config.compose import compose
from launcher.data.batch import Moment
from launcher.data.decode import UnreadableImage
from launcher.data.identity import identity
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.masks.pairs import read_pairs
from launcher.data.masks.values import IGNORED, Masks
from launcher.errors import UserError
from launcher.tasks.predicted_masks import mask_image

SHAPE = (6, 8)
COMPUTED = ("dataset.mean=null", "dataset.std=null")
COLOURS = {"a": "#000000", "b": "#0a0b0c"}


def masks_of(*words: str, **task: Any) -> Masks:
    values: Any = compose(["task=segmentation", *words]).config.task
    for name, value in task.items():
        object.__setattr__(values, name, value)
    return Masks.of(values, upright=True)


def write(path: Path, array: np.ndarray, kind: str = ".png", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + kind)
    if kind == ".npy":
        np.save(file, array)
    else:
        Image.fromarray(array).save(file, **options)
    return file


def pairs(folder: Path, count: int = 6, images: str = "images", masks: str = "masks", scale: int = 1) -> Path:
    for number in range(count):
        write(folder / images / f"{number}", np.zeros((*SHAPE, 3), np.uint8), ".jpg")
        write(folder / masks / f"{number}", np.full(SHAPE, scale * (number % 2), np.uint8))
    return folder


def inspected(folder: Path, *words: str) -> Inspection:
    given = ["task=segmentation", "dataloader=masks", "model=unet", "dataset=image_folder", f"dataset.path={folder}"]
    return inspect_data(compose([*given, *words]).config, must_exist=True)


def test_a_mask_is_the_same_in_each_format(tmp_path: Path) -> None:
    truth = np.arange(48, dtype=np.uint8).reshape(SHAPE) % 3
    truth[0] = IGNORED
    palette = Image.fromarray(truth)
    palette.putpalette([*range(256)] * 3)
    palette.save(tmp_path / "palette.png")
    files = [
        write(tmp_path / "gray", truth), tmp_path / "palette.png",
        write(tmp_path / "three", truth[..., None].repeat(3, 2)),
        *(write(tmp_path / kind, truth.astype(kind), ".npy") for kind in ("uint8", "int64", "float32")),
        write(tmp_path / "deep", truth.astype(np.uint16)), write(tmp_path / "tiff", truth, ".tif"),
    ]  # fmt: skip
    for file in files:
        assert np.array_equal(masks_of().read(file.read_bytes()), truth), file
    table = np.zeros((256, 3), np.uint8)
    table[1], table[2], table[IGNORED] = (10, 11, 12), (200, 0, 0), (255, 255, 255)
    coloured = write(tmp_path / "colours", table[truth]).read_bytes()
    by_colour = masks_of(classes={**COLOURS, "c": "#C80000"}, ignore="#ffffff")
    assert np.array_equal(by_colour.read(coloured), truth)
    others = write(tmp_path / "others", np.array([7, 0, 200, IGNORED], np.uint8)[np.minimum(truth, 3)]).read_bytes()
    assert np.array_equal(masks_of(classes={"a": 7, "b": 0, "c": 200}).read(others), truth)


@pytest.mark.parametrize(
    ("array", "task", "reason"),
    [
        (np.full(SHAPE, 9), {"classes": ["a", "b"]}, "48 pixels of the mask without a class, most of them the value 9"),
        (np.full(SHAPE, 0.5), {}, "a mask of fractions"),
        (np.arange(144).reshape(*SHAPE, 3), {}, "set task.classes="),
        (np.full((*SHAPE, 3), 1, np.uint8), {"classes": COLOURS}, "most of them the colour '#010101'"),
        (np.array(["text"]), {}, "not of numbers"),
    ],
)
def test_a_mask_without_classes_is_refused(
    array: np.ndarray, task: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableImage, match=re.escape(reason)):
        masks_of(**task).read(write(tmp_path / "mask", array, ".npy").read_bytes())


def test_images_of_any_channels_have_masks_and_are_cut_with_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(6):
        mask = random.integers(0, 2, SHAPE).astype(np.uint8)
        write(tmp_path / "masks" / f"{number}", mask)
        # the first channel has the mask, the last one what no 8 bits hold
        slices = np.stack([mask, random.random(SHAPE), mask * 1e-6], 2).astype(np.float32)[..., [0, 1, 1, 2]]
        write(tmp_path / "images" / f"{number}", slices, ".npy")
    words = ["dataset.val_split=0.2", "dataset.channels=4", "dataset.dtype=float32", *COMPUTED]
    config = inspected(tmp_path, *words, "dataset.native_size=8", "image.flip=0.5").config
    assert (config.dataset.mean or [])[3] == pytest.approx((config.dataset.mean or [])[0] * 1e-6, rel=1e-4)
    train, _ = read_pairs(config)
    decoder = config.task.decoder(config, None)
    records = config.task.records(train, decoder)
    draws = decoder.draws(Moment(1, 0, 0, 1), np.arange(len(train)))
    # note: crops of single pixels of the same value, which no resize mixes
    for number, one in enumerate(draws):
        box = replace(one, box_of=lambda *_: (2, 3, 1, 1, 0))
        image, mask, _ = records.sample(number, 8, box)
        assert image.shape == (8, 8, 4)
        assert image.dtype == np.float32
        assert np.array_equal(image[..., 0], mask)
        assert np.array_equal(image[..., 3], mask * np.float32(1e-6))
    write(tmp_path / "images" / "6", np.zeros((*SHAPE, 3), np.float32), ".npy")
    write(tmp_path / "masks" / "6", mask)
    with pytest.raises(UserError, match=r"images/6.npy \(it has dataset.channels=3 dataset.dtype=float32, not 4"):
        inspected(tmp_path, *words)


@pytest.mark.parametrize(
    ("images", "masks"),
    [("{}/images", "{}/masks"), ("images/{}", "annotations/{}"), ("{}/images/city", "{}/labels/city")],
)
def test_splits_are_found_in_each_layout(images: str, masks: str, tmp_path: Path) -> None:
    for split, count in {"train": 4, "valid": 2}.items():
        pairs(tmp_path, count, images.format(split), masks.format(split))
    result = inspected(tmp_path)
    dataset = result.config.dataset
    assert (dataset.classes, dataset.train_samples, dataset.val_samples) == (2, 4, 2)
    assert result.classes == ["0", "1"]


def test_images_and_masks_without_each_other_are_told_and_a_tenth_is_drawn(tmp_path: Path) -> None:
    pairs(tmp_path, 12)
    (tmp_path / "masks" / "3.png").rename(tmp_path / "masks" / "3_mask.png")
    (tmp_path / "masks" / "4.png").unlink()
    (tmp_path / "images" / "5.jpg").unlink()
    (tmp_path / "images" / "notes.txt").touch()
    write(tmp_path / "images" / "4", np.zeros((6, 8, 3), np.uint8), ".npy").rename(tmp_path / "images" / "6.npy")
    with pytest.raises(UserError, match=r"not divided into training and validation; set dataset.val_split=0.1"):
        inspected(tmp_path)
    result = inspected(tmp_path, "dataset.val_split=0.2")
    dataset = result.config.dataset
    assert (dataset.train_samples, dataset.val_samples) == (8, 2)
    text = "\n".join(result.notes)
    assert "1 image without a mask of their name, such as images/4.jpg" in text
    assert "1 mask without an image of their name, such as masks/5.png" in text
    assert "2 files without an image extension, such as images/6.npy" in text
    train, val = read_pairs(result.config)
    assert {*train.names}.isdisjoint(val.names)
    assert [Path(mask).stem.removesuffix("_mask") for mask in train.masks] == [Path(file).stem for file in train.names]  # type: ignore[union-attr]


def test_bad_pairs_are_refused_or_skipped(tmp_path: Path) -> None:
    pairs(tmp_path, 10)
    write(tmp_path / "masks" / "2", np.zeros((9, 9), np.uint8))
    (tmp_path / "masks" / "7.png").write_bytes(b"no image")
    with pytest.raises(
        UserError, match=r"2 of 10 images with masks cannot be used: .*the image has 8 x 6 px, its mask 9 x 9"
    ):
        inspected(tmp_path, "dataset.val_split=0.2")
    result = inspected(tmp_path, "dataset.val_split=0.2", "dataset.skip_bad=true")
    assert {*result.skipped} == {"images/2.jpg", "images/7.jpg"}
    again = read_pairs(result.config, result.skipped)
    assert [[*split.names] for split in again] == [[*split.names] for split in result.splits]
    assert sum(map(len, again)) == 8


def test_each_pair_is_held_out_in_one_fold_and_groups_are_not_divided(tmp_path: Path) -> None:
    for patient in "abcd":
        pairs(tmp_path, 3, f"images/{patient}", f"masks/{patient}")
    held_out: list[str] = []
    for fold in (1, 2, 3):
        result = inspected(tmp_path, "dataset.folds=3", f"dataset.fold={fold}", "dataset.groups=1")
        train, val = result.splits
        assert {name.split("/")[1] for name in train.names}.isdisjoint(name.split("/")[1] for name in val.names)
        assert f"dataset.folds=3: fold {fold} holds out {len(val)} of 12 images, drawn by seed=" in result.notes[0]
        held_out += val.names
    assert len(held_out) == len({*held_out}) == 12
    with pytest.raises(UserError, match=r"remove dataset\.folds if it is divided"):
        inspected(pairs(tmp_path / "other", 2, "train/images", "train/masks"), "dataset.folds=3", "dataset.fold=1")


@pytest.mark.parametrize("kind", [".jpg", ".png", ".tif", ".webp"])
def test_masks_are_of_upright_images_unless_images_are_read_as_stored(kind: str, tmp_path: Path) -> None:
    """Labelling tools show photos upright; the oracle is Pillow's exif_transpose."""
    folders, random = {True: tmp_path / "upright", False: tmp_path / "stored"}, np.random.default_rng(0)
    for number in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = number
        pixels = random.integers(0, 250, (*SHAPE, 3)).astype(np.uint8)
        for upright, folder in folders.items():
            file = write(folder / "images" / f"{number}", pixels, kind, exif=exif)
            with Image.open(file) as image:
                size = (ImageOps.exif_transpose(image) if upright else Image.fromarray(pixels)).size
            write(folder / "masks" / f"{number}", np.full(size[::-1], number % 2, np.uint8))
    for upright, folder in folders.items():
        words = ["dataset.val_split=0.3", f"dataset.exif_orientation={str(upright).lower()}"]
        config = inspected(folder, *words).config
        for split in read_pairs(config):
            records = config.task.records(split, config.task.evaluation_decoder(config))
            for number in range(len(split)):
                records.decoder.pair(records.record(number))  # raises if image and mask differ
        other = words[1].replace(str(upright).lower(), str(not upright).lower())
        with pytest.raises(UserError) as refused:
            inspected(folder, words[0], other)
        (problem,) = refused.value.problems
        assert "4 of 8 images with masks cannot be used: images/" in problem.message
        assert ", which EXIF rotates), images/" in problem.message
        assert f"rotate these masks as their images, or set {words[1]}" in problem.message


@pytest.mark.parametrize(
    ("classes", "mode", "stored"),
    [
        (None, "P", [0, 1, 2]),
        (["a", "b", "c"], "P", [0, 1, 2]),
        ({"wall": 1, "building": 2, "sky": 150}, "P", [1, 2, 150]),
        ({"a": 0, "b": 255, "c": 4000}, "I;16", [0, 255, 4000]),
        ({**COLOURS, "c": "#C80000"}, "RGB", [[0, 0, 0], [10, 11, 12], [200, 0, 0]]),
    ],
)
def test_a_predicted_mask_has_the_values_of_the_classes(classes: Any, mode: str, stored: Any, tmp_path: Path) -> None:
    values: Any = compose(["task=segmentation"]).config.task
    object.__setattr__(values, "classes", classes)
    indices = np.arange(48, dtype=np.uint8).reshape(SHAPE) % 3
    mask_image(indices, values).save(tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == mode
        assert np.array_equal(np.asarray(image), np.array(stored)[indices])
    assert np.array_equal(Masks.of(values, upright=True).read((tmp_path / "mask.png").read_bytes()), indices)


def test_the_rotation_of_a_mask_itself_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = write(tmp_path / "mask", np.arange(48, dtype=np.uint8).reshape(SHAPE) % 3, exif=exif)
    with Image.open(file) as image:
        assert np.array_equal(masks_of().read(file.read_bytes()), np.asarray(ImageOps.exif_transpose(image)))


def test_masks_of_jpeg_are_refused(tmp_path: Path) -> None:
    """Values between two classes at their edges would be others."""
    for mask in [*(pairs(tmp_path) / "masks").iterdir()]:
        Image.open(mask).save(mask.with_suffix(".jpg"), quality=100)
        mask.unlink()
    with pytest.raises(UserError, match=r"6 of 6 images with masks cannot be used: .*[(]its mask is a JPEG"):
        inspected(tmp_path, "dataset.val_split=0.5")


def test_masks_of_0_and_255_name_what_to_set(tmp_path: Path) -> None:
    pairs(tmp_path, scale=255)
    with pytest.raises(
        UserError, match=r"only the values 0 and 255, which is ignored; set task.classes=\{background:0"
    ):
        inspected(tmp_path, "dataset.val_split=0.3")
    result = inspected(tmp_path, "dataset.val_split=0.3", "task.classes={background:0,object:255}")
    assert result.classes == ["background", "object"]


@pytest.mark.parametrize("words", [[], ["dataset.classes=3"]])
def test_a_stray_value_is_no_class_and_gaps_are_named(words: list[str], tmp_path: Path) -> None:
    for number in range(2):
        write(pairs(tmp_path) / "masks" / f"{number}", np.arange(48, dtype=np.uint8).reshape(SHAPE) % 3)
    words = ["dataset.val_split=0.3", *words]
    assert inspected(tmp_path, *words).classes == ["0", "1", "2"]
    write(tmp_path / "masks" / "0", np.full(SHAPE, 7, np.uint8))
    with pytest.raises(
        UserError, match=r"have the values 0, 1, 2, 7; if 7 is the last class, set dataset\.classes=8, "
    ):
        inspected(tmp_path, *words)
    assert inspected(tmp_path, *words, "dataset.classes=8").classes == [*map(str, range(8))]


def test_the_identity_is_that_of_images_and_masks_in_any_folder(tmp_path: Path) -> None:
    one, two = (inspected(pairs(tmp_path / name), "dataset.val_split=0.3").config for name in ("a", "b"))
    assert identity(one) == identity(two)
    write(tmp_path / "b" / "masks" / "1", np.arange(48, dtype=np.uint8).reshape(SHAPE) % 2)
    assert identity(one) != identity(two)


def test_other_pairs_are_evaluated_with_the_classes_of_the_run(tmp_path: Path) -> None:
    data, test = pairs(tmp_path / "data"), pairs(tmp_path / "test", 3)
    words = ["dataset.val_split=0.2", f"dataset.test_path={test}"]
    result = inspected(data, *words)
    assert [(split.split, len(split)) for split in result.splits] == [("train", 5), ("val", 1), ("test", 3)]
    assert result.splits[2].classes == result.classes == ["0", "1"]
    write(test / "masks" / "2", np.full(SHAPE, 2, np.uint8))
    with pytest.raises(UserError) as refused:
        inspected(data, *words)
    (problem,) = refused.value.problems
    assert problem.key == "dataset.test_path"
    assert (
        "1 of 3 images with masks cannot be used: images/2.jpg (48 pixels of the mask without a class"
        in problem.message
    )
    assert len(inspected(data, *words, "dataset.skip_bad=true").splits[2].names) == 2
