"""EXIF rotation: all eight orientations, through each loader."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, PngImagePlugin

from launcher.config.compose import compose
from launcher.data.decode import UnreadableImage, decode
from launcher.data.ffcv.beton import open_beton
from launcher.data.inspection import inspect_data
from launcher.errors import UserError

from .conftest import make_loaders, words_for, write_files

COLOURS = np.array([[[220, 20, 20], [20, 200, 20]], [[20, 20, 220], [210, 210, 210]]], dtype=np.uint8)
UPRIGHT = COLOURS.repeat(40, axis=0).repeat(60, axis=1)
# The stored pixels of the upright image by orientation: the sides that Exif 2.3 calls the 0th row and 0th column.
STORED = {
    1: UPRIGHT,  # top, left
    2: UPRIGHT[:, ::-1],  # top, right
    3: UPRIGHT[::-1, ::-1],  # bottom, right
    4: UPRIGHT[::-1],  # bottom, left
    5: UPRIGHT.swapaxes(0, 1),  # left, top
    6: UPRIGHT.swapaxes(0, 1)[::-1],  # right, top
    7: UPRIGHT[::-1, ::-1].swapaxes(0, 1),  # right, bottom
    8: UPRIGHT.swapaxes(0, 1)[:, ::-1],  # left, bottom
}
WHOLE = ["image.scale=[1.0,1.0]", "image.ratio=[1.5,1.5]", "image.flip=0.0", "dataloader.workers=1", "batch_size=8"]
CROP = ["dataloader=ffcv", "dataloader.files.jpeg_share=1.0"]


def save(orientation: int, file: Path | io.BytesIO, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quality = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    Image.fromarray(np.ascontiguousarray(STORED[orientation])).save(file, kind, exif=exif, **quality)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The upright image in all orientations, four per class."""
    root = tmp_path_factory.mktemp("exif")
    for split in ("train", "val"):
        for orientation in STORED:
            path = root / split / "ab"[orientation // 5] / f"{orientation}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            save(orientation, path, "JPEG")
    return root


def colours(image: torch.Tensor) -> np.ndarray:
    """Return the mean colours [2, 2, 3] of the middles of an image's four quarters."""
    pixels = image.permute(1, 2, 0).double().numpy()
    height, width = (length // 2 for length in pixels.shape[:2])
    cut = slice(height // 3, height - height // 3), slice(width // 3, width - width // 3)
    quarters = [[pixels[y : y + height, x : x + width][cut].mean((0, 1)) for x in (0, width)] for y in (0, height)]
    return np.array(quarters)


def read(folder: Path, *words: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all training and all validation images, in the order of orientations."""
    loaders = make_loaders(folder, *WHOLE, *words)
    try:
        ((train, _, order),) = loaders.train.epoch(0)
        evaluated = torch.cat([images for images, _, _ in loaders.evaluate])
    finally:
        loaders.close()
    return train[np.argsort(order)], evaluated


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", STORED)
def test_an_image_is_rotated_by_its_exif_orientation_or_stays_as_stored(kind: str, orientation: int) -> None:
    save(orientation, file := io.BytesIO(), kind)
    decoded = decode(file.getvalue(), upright=True)
    assert np.abs(np.asarray(decoded.image).astype(int) - UPRIGHT).mean() < 3
    assert decoded.image.tobytes() == ImageOps.exif_transpose(Image.open(file)).convert("RGB").tobytes()
    # note: Pillow itself turns a TIFF
    stored = decode(file.getvalue(), upright=False)
    assert np.abs(np.asarray(stored.image).astype(int) - STORED[orientation]).mean() < 3
    assert (decoded.turned, stored.turned) == (orientation > 1, False)


def test_profiles_and_texts_of_some_megabytes_do_not_matter() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", "x" * 3_000_000, zip=True)
    for options in ({"icc_profile": bytes(3_000_000)}, {"pnginfo": text}):
        file = io.BytesIO()
        Image.fromarray(UPRIGHT).save(file, "PNG", **options)
        assert np.array_equal(decode(file.getvalue(), upright=True).image, UPRIGHT)


@pytest.mark.parametrize("value", [0, 9, 65535, b"Exif\0\0II*\0\xff\xff\xff\xff" + b"\xff" * 40])
def test_invalid_orientations_and_broken_exif_data_rotate_nothing(value: int | bytes) -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = value
    Image.fromarray(UPRIGHT).save(file, "JPEG", exif=value if isinstance(value, bytes) else exif)
    assert decode(file.getvalue(), upright=True).image.size == (120, 80)


def test_sixteen_bits_are_scaled_not_clipped() -> None:
    Image.fromarray((np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)).save(png := io.BytesIO(), "PNG")
    pgm = b"P5 16 16 65535\n" + (np.arange(256, dtype=">u2") * 257).tobytes()
    for data in (png.getvalue(), pgm):
        assert np.array_equal(np.asarray(decode(data, upright=True).image)[..., 0].ravel(), np.arange(256))


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_no_fixed_range_are_refused_not_read_as_black(kind: type) -> None:
    pixels = np.full((16, 16), 0.9 if kind is np.float32 else 70_000, kind)
    Image.fromarray(pixels).save(file := io.BytesIO(), "TIFF")
    with pytest.raises(UnreadableImage, match="32 bits a channel"):
        decode(file.getvalue(), upright=True)


@pytest.mark.parametrize(
    "words",
    [
        ["dataloader=torchvision"],
        ["dataloader=ffcv", "dataloader.files.jpeg_share=0.0"],
        ["dataloader=ffcv", "dataloader.files.jpeg_share=1.0"],
        [*CROP, "dataloader.dct_scaling=true"],
    ],
    ids=["torchvision", "pixels", "jpeg", "dct_scaling"],
)
def test_every_loader_yields_upright_images(folder: Path, tmp_path: Path, words: list[str]) -> None:
    if "dataloader=ffcv" in words:
        words = [*words, f"dataloader.folder={tmp_path}"]
        write_files(folder, *words)
    for images in read(folder, *words):
        assert len(images) == 8
        for image in images:
            assert np.abs(colours(image) - COLOURS).max() < 30


@pytest.mark.parametrize("loader", ["torchvision", "ffcv"])
def test_images_stay_as_stored_with_exif_orientation_false(folder: Path, tmp_path: Path, loader: str) -> None:
    words = [f"dataloader={loader}", "dataset.exif_orientation=false"]
    if loader == "ffcv":
        words.append(f"dataloader.folder={tmp_path}")
        write_files(folder, *words)
    for image, stored in zip(read(folder, *words)[1], STORED.values(), strict=True):
        assert np.abs(colours(image) - colours(torch.tensor(stored.copy()).permute(2, 0, 1))).max() < 30


def test_ffcv_files_record_whether_exif_rotation_was_applied(folder: Path, tmp_path: Path) -> None:
    train, _ = write_files(folder, f"dataloader.folder={tmp_path}")
    assert (manifest := open_beton(train).manifest) is not None
    assert manifest.converted == {"turned upright": 7}
    words = words_for(folder, "dataloader=ffcv", f"dataloader.folder={tmp_path}")
    assert inspect_data(compose(words).config, must_exist=True).notes == []
    with pytest.raises(
        UserError, match=r"exif_orientation=false: .* was written with dataset.exif_orientation=true; set it"
    ):
        inspect_data(compose([*words, "dataset.exif_orientation=false"]).config, must_exist=True)
