"""JPEG decoders: the same pixels as Pillow's, also where only a part is decoded; all other files go to Pillow."""

import dataclasses
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import PIL
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from launcher.config.compose import compose
from launcher.data.crops import cut, resize_by_pillow, resize_by_torch
from launcher.data.ffcv.decoder import decode
from launcher.data.ffcv.encoder import to_jpeg
from launcher.data.images import Pixels
from launcher.data.index import Images, Texts
from launcher.data.jpeg import DECODERS, decode_part, decoder_of, plain_frame, with_decoder
from launcher.data.records import Records
from launcher.errors import UserError

from .conftest import needs_ffcv

INSTALLED = [name for name in DECODERS if find_spec("PIL" if name == "pillow" else name)]
EXACT = [name for name in INSTALLED if name != "ffcv"]
FILES = compose(["dataloader=ffcv"]).config.dataloader.files  # type: ignore[union-attr]


def photograph(height: int, width: int) -> Image.Image:
    coarse = np.random.default_rng(height * 1000 + width).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@given(
    height=st.integers(1, 90), width=st.integers(1, 90), subsampling=st.integers(0, 2), data=st.data()
)  # fmt: skip
@settings(max_examples=20)
def test_any_part_has_pillows_pixels(
    name: str, mode: str, progressive: bool, height: int, width: int, subsampling: int, data: st.DataObject
) -> None:
    content = jpeg(photograph(height, width).convert(mode), subsampling=subsampling, progressive=progressive)
    top, left = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    rows, columns = data.draw(st.integers(1, height - top)), data.draw(st.integers(1, width - left))
    frame = plain_frame(content, upright=True)
    assert frame is not None
    assert (frame.height, frame.width) == (height, width)
    pixels, box = decode_part(content, frame, (top, left, rows, columns, 0), 8, decoder_of(name))
    assert box == (top, left, rows, columns, 0)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    assert np.array_equal(
        pixels[top : top + rows, left : left + columns], expected[top : top + rows, left:][:, :columns]
    )


@pytest.mark.parametrize("eighths", [1, 2, 4])
@pytest.mark.parametrize("size", [(240, 177), (63, 64)])
def test_scaled_parts_are_the_same_for_all_decoders(eighths: int, size: tuple[int, int]) -> None:
    content = jpeg(photograph(*size), subsampling=2, quality=95)
    frame = plain_frame(content, upright=True)
    assert frame is not None
    parts = []
    for name in EXACT:
        pixels, (top, left, height, width, _) = decode_part(
            content, frame, (9, 8, 40, 32, 0), eighths, decoder_of(name)
        )
        parts.append(pixels[top : top + height, left : left + width])
    assert all(np.array_equal(part, parts[0]) for part in parts)


def whole(folder: Path, content: bytes) -> np.ndarray:
    (folder / "image.jpg").write_bytes(content)
    one = Images("train", str(folder), [], Texts(["image.jpg"]), np.zeros(1, np.int64))
    pixels: np.ndarray = Records(one, Pixels(upright=True)).sample(0, 0, None)[0]
    return pixels


def test_what_needs_more_than_decoding_is_left_to_pillow(tmp_path: Path) -> None:
    turned, upright = Image.Exif(), Image.Exif()
    turned[0x0112], upright[0x0112] = 6, 1
    image = photograph(40, 60)
    plain = jpeg(image)
    assert plain_frame(plain, upright=True) is not None
    assert plain_frame(plain + b"trailing", upright=True) is not None
    assert plain_frame(jpeg(image, exif=upright), upright=True) is not None
    assert plain_frame(jpeg(image, exif=turned), upright=False) is not None
    for other in (jpeg(image, exif=turned), jpeg(image.convert("CMYK")), plain[:-40], plain[:300], b"", b"GIF89a"):
        assert plain_frame(other, upright=True) is None
    assert whole(tmp_path, jpeg(image, exif=turned)).shape == (60, 40, 3)
    with pytest.raises(UserError, match="truncated"):
        whole(tmp_path, plain[:-40])


@given(st.integers(2, 300), st.integers(2, 300), st.integers(8, 200), st.sampled_from(["bilinear", "bicubic"]))
@settings(max_examples=40)
def test_resized_pixels_are_pillows_within_rounding(height: int, width: int, size: int, interpolation: str) -> None:
    pixels = np.asarray(photograph(height, width)).copy()
    ours, pillows = (
        cut(pixels, (0, 0, height, width, 1), size, interpolation, resize).astype(int)
        for resize in (resize_by_torch, resize_by_pillow)
    )
    # note: Pillow-SIMD rounds as torch does
    assert np.abs(ours - pillows).max() <= (0 if ".post" in PIL.__version__ else 2)


@needs_ffcv
@pytest.mark.parametrize("size", [8, 20, 40, 90])
def test_stored_images_have_the_pixels_of_ffcvs_kernels(size: int) -> None:
    from ffcv.libffcv import resize_crop

    values = dataclasses.replace(FILES, jpeg_share=1.0)
    source = np.asarray(photograph(150, 199))
    data, row = to_jpeg(source, values), np.array((0, 199, 150), [("mode", "u1"), ("width", "<u2"), ("height", "<u2")])
    box = np.array([10, 33, 101, 90, 1])
    ours, theirs, resized = (np.empty((size, size, 3), np.uint8) for _ in range(3))
    for out, name in ((ours, "simplejpeg"), (theirs, "ffcv")):
        decode(data, row[()], box, out, decoder_of(name, fast=True), scaled=True, fill=None)
    assert np.array_equal(ours, theirs)
    raw = np.array((1, 199, 150), row.dtype)
    decode(source.tobytes(), raw[()], box * [1, 1, 1, 1, 0], ours, decoder_of("pillow"), scaled=True, fill=None)
    resize_crop(np.ascontiguousarray(source), 10, 111, 33, 123, resized)
    assert np.array_equal(ours, resized)


def test_auto_is_recorded_as_the_installed_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_decoder(compose(["dataloader=ffcv"]).config)
    assert config.dataloader.decoder == "simplejpeg"  # type: ignore[union-attr]
    monkeypatch.setattr("launcher.data.jpeg.find_spec", lambda module: None)
    with pytest.raises(UserError, match=r"dataloader\.decoder=ffcv: ffcv is not installed; run pip install ffcv"):
        with_decoder(compose(["dataloader=ffcv", "dataloader.decoder=ffcv"]).config)


def test_damaged_jpegs_are_refused_by_every_decoder() -> None:
    content = bytes(8) + to_jpeg(np.zeros((16, 16, 3), np.uint8), FILES)[8:]
    for name in INSTALLED:
        with pytest.raises(ValueError, match=r"."):
            decoder_of(name, fast=True).decode(content, 16, 16, 8)
