"""Untrusted folders and images: each is read, skipped, or refused with one line."""

import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.crops import centre_cut
from launcher.data.decode import UnreadableImage, decode, size
from launcher.data.images import Pixels
from launcher.data.records import Records
from launcher.data.sources.find import open_source
from launcher.data.workers import quiet
from launcher.errors import UserError
from launcher.measure.diagnosis import image_advice
from tests.commands import execute, refused
from tests.data.sources.downloads import report
from tests.images import png


def folder_of(path: Path, *names: bytes) -> Path:
    """Write class folders, by default a and b, with one image each in train/ and val/."""
    for split in (b"train", b"val"):
        for name in names or (b"a", b"b"):
            folder = os.path.join(os.fsencode(path), split, name)  # noqa: PTH118 - bytes
            os.makedirs(folder)  # noqa: PTH103
            Image.new("RGB", (9, 7), (200, 10, 10)).save(os.fsdecode(folder + b"/p.png"))
    return path


ODD_NAMES = [b"new\nline", b"not\xffutf8", b"-rf", "emoji🙂".encode(), b" ", b"[x]", b"$(touch x)", b"%s", b"a" * 255]


def test_an_error_about_an_unusual_name_is_one_line(tmp_path: Path) -> None:
    folder_of(tmp_path, *ODD_NAMES)
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/train/not\xffutf8/p.png"))
    odd.write_bytes(b"")
    split = open_source(str(tmp_path), "train", quiet)
    assert sorted(map(os.fsencode, split.classes)) == sorted(ODD_NAMES)
    pixels = Pixels(upright=True)
    images = Records(split, pixels)
    lines = []
    for number in range(len(ODD_NAMES)):
        try:
            images.made(number, lambda record: pixels.whole(record["image"]))
        except UserError as error:
            lines.append(str(error))
    assert len(lines) == 1
    assert r"not\udcffutf8/p.png cannot be read as an image" in lines[0]
    odd.unlink()
    assert r"1 class has no training images: not\udcffutf8" in refused(
        "plan", "dataset=image_folder", f"dataset.path='{tmp_path}'"
    )


@pytest.mark.parametrize("name", ["new\nline", "-rf", "emoji🙂", "[/x]", "a b"])
def test_the_folder_itself_may_have_an_unusual_name(tmp_path: Path, name: str) -> None:
    words = ["recipe=none", "dataset=image_folder", f"dataset.path='{folder_of(tmp_path / name)}'", "batch_size=1"]
    code, out, errors = execute("plan", *words)
    assert (code, errors) == (0, "")
    assert "2 training images" in out


def test_a_folder_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    path = folder_of(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")))
    assert "not UTF-8 text" in refused("plan", "dataset=image_folder", f"dataset.path='{path}'")


@pytest.mark.parametrize("path", ["a" * 5000, "/dev/null", "/dev/zero/x", "/nowhere"])
def test_a_path_that_is_not_a_folder_is_refused(path: str) -> None:
    assert "not a folder" in refused("plan", "dataset=image_folder", f"dataset.path='{path}'")


# -- images


def jpeg(width: int, height: int) -> bytes:
    """A JPEG whose head claims another size than it has."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    data = bytearray(buffer.getvalue())
    start = data.index(b"\xff\xc0")
    data[start + 5 : start + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def text_bomb() -> bytes:
    data = png(1, 1, b"\0\0")
    body = b"Comment\0\0" + zlib.compress(b"a" * 80_000_000, 1)
    chunk = struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))
    return data[:33] + chunk + data[33:]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a JPEG"),
        (b"\0", "not a JPEG"),
        (b"\xff\xd8\xff", "."),
        (png(60_000, 60_000), "more than 89 million pixels"),
        (png(100_000, 1000), "more than 89 million pixels"),
        (jpeg(65_000, 65_000), "more than 89 million pixels"),
        (png(2**31 - 1, 2**31 - 1), "more than 89 million pixels|none of"),
        (png(0, 5), "not a JPEG|."),
        (png(9000, 9000, b"\0"), "truncated|."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "not a JPEG"),
        (b"GIF89a" + b"\xff" * 200, "."),
        (text_bomb, "."),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><image href='/etc/passwd'/></svg>", "not a JPEG"),
    ],
)
def test_an_invalid_image_is_one_error(tmp_path: Path, content: bytes | Callable[[], bytes], expected: str) -> None:
    folder_of(tmp_path)
    (tmp_path / "train" / "a" / "p.png").write_bytes(content() if callable(content) else content)
    split = open_source(str(tmp_path), "train", quiet)
    with pytest.raises(
        UserError, match=rf"a/p\.png cannot be read as an image \(.*({expected}).*\); repair or remove it"
    ):
        Records(split, Pixels(upright=True)).sample(0, 0, None)
    list(image_advice(compose([]).config, split))


def test_the_content_decides_the_format() -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO"):
        Image.new("RGB", (8, 6), (250, 250, 250)).save(file := io.BytesIO(), kind)
        assert decode(file.getvalue(), upright=True).image.size == size(file.getvalue()) == (8, 6)
    for kind in ("EPS", "ICO", "TGA"):
        Image.new("RGB", (8, 6)).save(file := io.BytesIO(), kind)
        with pytest.raises(UnreadableImage, match="not a JPEG, PNG"):
            decode(file.getvalue(), upright=True)


@pytest.mark.parametrize("shape", [(1, 2_000_000), (2_000_000, 1)])
def test_a_very_narrow_image_is_cropped_before_it_is_resized(shape: tuple[int, int]) -> None:
    """Resized first, it would need 393 GB."""
    pixels = centre_cut(np.array(Image.new("RGB", shape, (9, 8, 7))), 256, 224, "bilinear")
    assert pixels.shape == (224, 224, 3)
    assert (pixels == (9, 8, 7)).all()


# -- archives


def tar_header(name: str, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    header = tarfile.TarInfo(name)
    header.size, header.type, header.linkname = size, kind, link
    return header.tobuf(tarfile.GNU_FORMAT)


def tar_of(path: Path, *headers: bytes, size: int = 20 << 30) -> Path:
    """Write an image of class a, then headers, in a sparse file of 20 GB."""
    with path.open("wb") as file:
        file.write(tar_header("train/a/good.png", 512) + bytes(512) + b"".join(headers))
        file.truncate(size)
    return path


def zip_stating(path: Path, **stated: int) -> Path:
    """Write an image of class a whose 64-bit record in the directory states other values than it has."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("train/a/p.png", png(2, 2, b"\0"))
    data = bytearray(path.read_bytes())
    start, end = data.index(b"PK\1\2"), data.index(b"PK\5\6")
    values = {"size": 80, "compressed": 60, "offset": 0} | stated
    extra = struct.pack("<HHQQQ", 1, 24, *values.values())
    struct.pack_into("<IIHH", data, start + 20, 2**32 - 1, 2**32 - 1, len("train/a/p.png"), len(extra))
    struct.pack_into("<I", data, start + 42, 2**32 - 1)
    struct.pack_into("<I", data, end + 12, end - start + len(extra))
    data[end:end] = extra
    path.write_bytes(data)
    return path


LARGE = 19 << 30
ARCHIVES: dict[str, Callable[[Path], Path]] = {
    "pax header": lambda folder: tar_of(folder / "a.tar", tar_header("x", LARGE, tarfile.XHDTYPE)),
    "long name": lambda folder: tar_of(folder / "a.tar", tar_header("x", LARGE, tarfile.GNUTYPE_LONGNAME)),
    "long link": lambda folder: tar_of(folder / "a.tar", tar_header("x", LARGE, tarfile.GNUTYPE_LONGLINK)),
    "zip size": lambda folder: zip_stating(folder / "a.zip", size=2**64 - 1),
    "zip compressed size": lambda folder: zip_stating(folder / "a.zip", compressed=2**62),
    "zip offset": lambda folder: zip_stating(folder / "a.zip", offset=2**64 - 2),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_states_impossible_lengths_is_refused(name: str, tmp_path: Path) -> None:
    path = ARCHIVES[name](tmp_path)
    with pytest.raises(UserError, match=r"^dataset\.path=\S+: (states a wrong|cannot be read)") as caught:
        open_source(str(path), "train", report)
    assert "MemoryError" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_devices_and_links_of_a_tar_file_are_no_images(tmp_path: Path) -> None:
    kinds = {"c": tarfile.CHRTYPE, "b": tarfile.BLKTYPE, "p": tarfile.FIFOTYPE, "s": tarfile.SYMTYPE}
    headers = [tar_header(f"train/a/{name}.png", 0, kind, "/etc/passwd") for name, kind in kinds.items()]
    headers += [tar_header(f"train/a/{name}.png", 0, tarfile.LNKTYPE, f"train/a/{name}.png") for name in "xy"]
    headers.append(tar_header("train/a/linked.png", 0, tarfile.LNKTYPE, "train/a/good.png"))
    path = tar_of(tmp_path / "a.tar", *headers, size=1 << 20)
    assert open_source(str(path), "train", report).names == ["a/good.png", "a/linked.png"]
