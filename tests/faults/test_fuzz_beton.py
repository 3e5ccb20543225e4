"""Untrusted FFCV files and manifests: valid ones are read, others refused, and none is read beyond its end."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.config.compose import compose
from launcher.data.ffcv.beton import ALLOCATION, HEADER, ROW, ROWS_START, manifest_path, open_beton, read_manifest
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.errors import UserError
from tests.images import write_images

SAMPLES = 6


@pytest.fixture(scope="module")
def beton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an FFCV file, half of it JPEGs, and its manifest."""
    half = SAMPLES // 2
    root = write_images(tmp_path_factory.mktemp("images"), {"train": half, "val": half}, size=(30, 40), kind="png")
    words = ["dataset=image_folder", f"dataset.path={root}", "dataloader=ffcv", "dataloader.workers=1"]
    (path, _), *_ = prepare(FFCVDataset.of(compose(words).config), lambda *_: None)
    return path


@pytest.fixture(scope="module")
def valid(beton: Path) -> bytes:
    return beton.read_bytes()


@pytest.fixture
def copied(beton: Path, valid: bytes, tmp_path: Path) -> Path:
    """A copy of the file without a manifest."""
    path = tmp_path / beton.name
    path.write_bytes(valid)
    return path


def is_one_line(error: UserError) -> None:
    assert str(error).isprintable()


def mapped(path: Path, kind: np.dtype) -> np.ndarray:
    """Map the rows or the allocations of a file; changes are written to it."""
    start = ROWS_START if kind is ROW else int(np.fromfile(path, HEADER, 1)["table"][0])
    return np.memmap(path, kind, "r+", start, (SAMPLES,))


def test_the_unmutated_file_is_valid(copied: Path) -> None:
    assert (open_beton(copied).samples, open_beton(copied).classes) == (SAMPLES, 2)
    assert set(mapped(copied, ROW)["f0"]["mode"]) == {0, 1}


@pytest.mark.parametrize(
    ("fields", "values", "error"),
    [
        ("f0 place", [0, 1, 2**40, 2**64 - 1], "recorded and stored sizes differ"),
        ("f0 mode", [2, 255], "recorded and stored sizes differ"),
        ("f0 width", [0, 41, 65535], "recorded and stored sizes differ"),
        ("f0 height", [0], "recorded and stored sizes differ"),
        ("f1", [-1, 2**62, 2**24], "labels outside 0 to"),
        ("size", [2**63, 10**7], "extend past its end"),
        ("place", [2**64 - 8, 10**9], "extend past its end"),
    ],
)
def test_a_wrong_number_of_a_row_or_an_allocation_is_refused(
    copied: Path, fields: str, values: list[int], error: str
) -> None:
    table = mapped(copied, ROW if fields.startswith("f") else ALLOCATION)
    raw = int(np.flatnonzero(mapped(copied, ROW)["f0"]["mode"] == 1)[0])
    column = table
    for field in fields.split():
        column = column[field]
    for value in values:
        column[raw] = value
        table.flush()
        with pytest.raises(UserError, match=error):
            open_beton(copied)


@settings(max_examples=150)
@given(place=st.floats(0, 1, exclude_max=True), some=st.binary(min_size=1, max_size=9), cut=st.booleans())
def test_a_mutated_file_is_read_or_refused(beton: Path, valid: bytes, place: float, some: bytes, cut: bool) -> None:
    size = ROWS_START + SAMPLES * ROW.itemsize + SAMPLES * ALLOCATION.itemsize
    at = int(place * size)
    at = at if at < size - SAMPLES * ALLOCATION.itemsize else len(valid) - (size - at)
    path = beton.with_name("mutated.beton")
    path.write_bytes(valid[:at] if cut else valid[:at] + some + valid[at + len(some) :])
    try:
        file = open_beton(path)
    except UserError as error:
        is_one_line(error)
    else:
        assert 0 < file.samples <= SAMPLES
        assert (file.rows["f0"]["width"].astype(int) * file.rows["f0"]["height"]).max() <= 10**8
        assert 0 < file.classes <= 2**24


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)


@settings(max_examples=100)
@given(changes=st.dictionaries(st.sampled_from(["split", "samples", "classes", "values", "bytes", "x"]), VALUES))
def test_a_mutated_manifest_is_read_or_refused(beton: Path, valid: bytes, changes: dict[str, Any]) -> None:
    path = beton.with_name("changed.beton")
    path.write_bytes(valid)
    good = json.loads(manifest_path(beton).read_text())
    manifest_path(path).write_text(json.dumps(good | changes))
    try:
        file = open_beton(path)
    except UserError as error:
        is_one_line(error)
    else:
        assert (file.samples, file.classes) == (SAMPLES, len((good | changes)["classes"]))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000, b"[]", b"{}", b"null", b'{"samples": NaN}'])
def test_an_invalid_manifest_is_refused(copied: Path, content: bytes) -> None:
    manifest_path(copied).write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_manifest(copied)


def test_a_manifest_of_other_classes_is_refused(beton: Path, copied: Path) -> None:
    shutil.copy(manifest_path(beton), manifest_path(copied))
    values = json.loads(manifest_path(copied).read_text())
    manifest_path(copied).write_text(json.dumps(values | {"classes": ["a"]}))
    with pytest.raises(UserError, match="labels outside 0 to 0"):
        open_beton(copied)
