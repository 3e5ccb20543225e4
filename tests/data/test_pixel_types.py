"""Images of any channels and of 16 or 32 bits: read without loss, and refused where they differ from the config."""

import io
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from launcher.config.compose import compose
from launcher.data.batch import START, Batch
from launcher.data.decode import UnreadableImage
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.loading import build_loaders
from launcher.data.pixel_types import OtherType, PixelType
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import single_rank
from launcher.tasks import build_task
from launcher.tasks.images import displayed
from tests.images import write_arrays

RANDOM = np.random.default_rng(0)


def pixels_of(dtype: str, channels: int, shape: tuple[int, int] = (6, 8)) -> np.ndarray:
    """Random values of the whole range."""
    if dtype == "float32":
        return RANDOM.normal(size=(*shape, channels)).astype(dtype)
    return RANDOM.integers(0, np.iinfo(dtype).max, (*shape, channels), endpoint=True).astype(dtype)


def tiff_of(pixels: np.ndarray) -> bytes:
    """Return an uncompressed TIFF, whose extra samples have no meaning."""
    tifffile: Any = pytest.importorskip("tifffile")
    file, channels = io.BytesIO(), pixels.shape[2]
    stored = pixels[..., 0] if channels == 1 else pixels
    kind, colours = ("rgb", 3) if channels > 2 else ("minisblack", 1)
    extra = ["unspecified"] * (channels - colours)
    tifffile.imwrite(file, stored, photometric=kind, planarconfig="contig", extrasamples=extra)
    return file.getvalue()


def array_file(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, pixels)
    return file.getvalue()


def png_of(pixels: np.ndarray) -> bytes:
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    done, data = cv2.imencode(".png", pixels[..., order])
    assert done
    return bytes(data.tobytes())


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_values_are_read_as_they_are_stored(dtype: str, channels: int) -> None:
    pixels, pixel_type = pixels_of(dtype, channels), PixelType(channels, dtype)
    kinds = {"npy": array_file, "tif": tiff_of}
    if dtype != "float32" and channels in (1, 3, 4):
        kinds["png"] = png_of
    if pixel_type.is_rgb:
        # note: an image that was always converted to 8-bit RGB has a format of images
        del kinds["npy"]
    for kind, write in kinds.items():
        read = pixel_type.read(write(pixels), upright=True)
        assert read.dtype == ("uint8" if dtype == "uint8" else "float32"), kind
        assert np.array_equal(read.astype(np.float64), pixels.astype(np.float64)), kind
        assert pixel_type.edges(write(pixels)) == (6, 8)


def test_planes_alpha_and_other_orders_of_bytes_are_read() -> None:
    pixels = pixels_of("uint16", 4)
    tifffile: Any = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(file, pixels.transpose(2, 0, 1), planarconfig="separate", photometric="minisblack")
    expected = pixels.astype(np.float32)
    assert np.array_equal(PixelType(4, "uint16").read(file.getvalue(), upright=True), expected)
    assert np.array_equal(PixelType(4, "uint16").read(array_file(pixels.astype(">u2")), upright=True), expected)
    for kind in ("PNG", "TIFF", "WEBP"):
        eight, file = pixels_of("uint8", 4), io.BytesIO()
        Image.fromarray(eight).save(file, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
        assert np.array_equal(PixelType(4, "uint8").read(file.getvalue(), upright=True), eight), kind


def test_a_tiff_of_too_many_values_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiff_of(pixels_of("uint16", 5))
    monkeypatch.setattr("launcher.data.pixel_types._MOST_VALUES", 6 * 8 * 5 - 1)
    with pytest.raises(UnreadableImage, match="more than 0 million values"):
        PixelType(5, "uint16").read(data, upright=True)


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (pixels_of("uint8", 3), "channels=3 dataset.dtype=uint8, not 4 of uint16"),
        (pixels_of("uint16", 3), "channels=3 dataset.dtype=uint16, not 4 of uint16"),
        (pixels_of("float32", 4), "channels=4 dataset.dtype=float32, not 4 of uint16"),
        (pixels_of("uint16", 4).transpose(2, 0, 1), "channels=8 dataset.dtype=uint16"),
        (pixels_of("uint16", 4)[None], r"the shape \[1, 6, 8, 4\]"),
    ],
)
def test_other_channels_are_refused(pixels: np.ndarray, reason: str) -> None:
    with pytest.raises(OtherType, match=reason):
        PixelType(4, "uint16").read(array_file(pixels), upright=True)


def test_values_that_are_not_finite_and_damaged_files_are_refused() -> None:
    pixels = pixels_of("float32", 2)
    pixels[3, 4, 1] = np.nan
    with pytest.raises(UnreadableImage, match="not finite"):
        PixelType(2, "float32").read(array_file(pixels), upright=True)
    for data in (tiff_of(pixels)[:60], array_file(pixels)[:90], png_of(pixels_of("uint16", 4))[:60]):
        with pytest.raises(UnreadableImage):
            PixelType(4, "uint16").read(data, upright=True)


def inspected(folder: Path, *words: str) -> Inspection:
    given = ["recipe=small", "dataset=image_folder", f"dataset.path={folder}", *words]
    return inspect_data(compose(given).config, must_exist=True)


COMPUTED = ("dataset.mean=null", "dataset.std=null")
FOUR = ("dataset.channels=4", "dataset.dtype=uint16")


def test_mean_and_deviation_are_those_of_the_training_images(tmp_path: Path) -> None:
    arrays = write_arrays(tmp_path, "uint16", 4)
    pixels = np.concatenate([one.reshape(-1, 4) for name, one in arrays.items() if name.startswith("train")]) / 65535
    dataset = inspected(tmp_path, *FOUR, *COMPUTED).config.dataset
    assert dataset.mean == pytest.approx(pixels.mean(0), rel=1e-5)
    assert dataset.std == pytest.approx(pixels.std(0), rel=1e-5)
    assert (dataset.classes, dataset.train_samples) == (2, 8)
    # a file of the same size and another content
    changed = tmp_path / "train" / "cat" / "0.npy"
    np.save(changed, np.zeros((24, 24, 4), np.uint16))
    assert inspected(tmp_path, *FOUR, *COMPUTED).config.dataset.mean != dataset.mean


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FOUR, "has 3 numbers for dataset.channels=4; set one per channel, or dataset.mean=null"),
        (
            ("dataset.channels=5", "dataset.dtype=uint16", *COMPUTED),
            "dataset.channels=4 dataset.dtype=uint16, not 5 of",
        ),
        (("dataset.channels=4", *COMPUTED), "dataset.dtype=uint16, not 4 of uint8; set these, or other images"),
        (("dataloader=ffcv", *FOUR, *COMPUTED), "has 8-bit RGB alone, not 4 channels of uint16"),
        (("dataset=shapes", *FOUR, *COMPUTED), "is built in, as 8-bit RGB"),
        (("dataset=shapes", *COMPUTED), "is not the folder of dataset=shapes, whose images are drawn by the program"),
    ],
)
def test_other_images_than_those_of_the_config_are_refused(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    write_arrays(tmp_path, "uint16", 4)
    with pytest.raises(UserError) as refused:
        inspected(tmp_path, *words)
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_arrays_are_no_images_of_the_default_type(kind: str, tmp_path: Path) -> None:
    write_arrays(tmp_path / "images", "uint8", 3)
    with pytest.raises(UserError, match="contains no images"):
        inspected(archived(tmp_path / "images", kind))


def archived(folder: Path, kind: str) -> Path:
    """Return an archive of a folder, or the folder itself."""
    return folder if kind == "folder" else Path(shutil.make_archive(str(folder), kind, folder))


@pytest.mark.parametrize(
    ("dtype", "largest", "kind"),
    [("uint8", 255, "zip"), ("uint16", 65535, "folder"), ("uint16", 65535, "tar"), ("float32", 1, "folder")],
)
def test_loaded_and_normalized_values_lose_nothing(dtype: str, largest: int, kind: str, tmp_path: Path) -> None:
    arrays = write_arrays(tmp_path / "images", dtype, 5)
    crops = ["image.scale=[1,1]", "image.ratio=[1,1]", "image.flip=0", "dataset.native_size=24", "batch_size=8"]
    words = [*crops, "dataset.channels=5", f"dataset.dtype={dtype}", "image.eval_resize=224", *COMPUTED]
    path = archived(tmp_path / "images", kind)
    plan = plan_for(inspected(path, *words, "dataloader.workers=0").config, 1)
    with closing(build_loaders(plan, single_rank(torch.device("cpu")))) as loaders:
        batches = {"train": next(iter(loaders.train.epoch(0))), "val": next(iter(loaders.evaluate))}
        readers = {"train": loaders.train.reader, "val": loaders.evaluate.reader}
        names = {split: [readers[split].name(int(n)) for n in batch[2]] for split, batch in batches.items()}
    for split, (images, _, _) in batches.items():
        stored = np.stack([arrays[f"{split}/{name.removesuffix('.npy')}"] for name in names[split]])
        assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), stored)
        batch = Batch(images, torch.zeros(len(images)), np.zeros(1), START)
        prepared = build_task(plan.config).prepare(batch).inputs.permute(0, 2, 3, 1).numpy()
        mean, std = plan.config.dataset.normalization
        assert prepared == pytest.approx((stored / largest - mean) / std, abs=2e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (f"algorithms=[{name}]", "changes? colours of 8-bit RGB")
            for name in ("randaugment", "trivialaugment", "augmix")
        ),
        ("algorithms=[distillation]", "teachers were trained on such images"),
        ("dataloader.dct_scaling=true", "set dataloader.dct_scaling=false"),
        ("model.weights=torchvision", "for images of three channels alone"),
    ],
)
def test_what_is_for_8_bit_rgb_is_refused(words: str, message: str) -> None:
    numbers = "[0.5,0.5,0.5,0.5]"
    given = ["dataset.channels=4", f"dataset.mean={numbers}", f"dataset.std={numbers}", "dataset=image_folder"]
    plan = Plan(compose([*given, words]).config, 1, 640)
    with pytest.raises(UserError, match=message):
        check(plan, {})


def test_a_model_for_three_channels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["dataset.channels=4", "dataset=image_folder"]).config
    check(Plan(config, 1, 640), {})
    monkeypatch.setattr(type(config.model), "any_channels", False)
    with pytest.raises(UserError, match="model=resnet18 takes images of three channels alone"):
        check(Plan(config, 1, 640), {})


def test_displayed_are_the_first_three_channels_or_a_gray_one() -> None:
    dataset = compose(["dataset.channels=4", "dataset.dtype=uint16", "dataset=image_folder"]).config.dataset
    pixels = torch.from_numpy(pixels_of("uint16", 4)[None].astype(np.float32)).permute(0, 3, 1, 2) / 65535
    shown = displayed(pixels, dataset)
    assert np.array_equal(shown, np.rint(pixels.permute(0, 2, 3, 1).numpy()[..., :3] * 255).astype(np.uint8))
    gray = displayed(pixels[:, :2], replace(dataset, channels=2))
    assert all(np.array_equal(gray[..., channel], shown[..., 0]) for channel in range(3))
