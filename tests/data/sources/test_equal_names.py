"""Images of equal names, and members of archives that could be taken for others: read, counted or refused."""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher.data.sources.find import open_source
from launcher.data.sources.reading import read
from launcher.data.split import Split
from launcher.data.workers import quiet
from launcher.errors import UserError

from .archives import png, tar


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def opened(path: Path) -> Split:
    return open_source(str(path), "all", quiet)


def contents(source: Split) -> list[tuple[str, bytes]]:
    pieces = [read(source.piece(number)) for number in range(len(source.files))]
    return [(source.classes[label], data) for label, data in zip(source.labels.tolist(), pieces, strict=True)]


def dropped(source: Split) -> list[tuple[int, str]]:
    return [(one.rows, one.example) for one in source.dropped.values()]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_the_last_of_equal_names_in_one_archive_counts(kind: str, tmp_path: Path) -> None:
    members = [("a/0.png", b"first"), ("a/0.png", b"last"), ("b/0.png", b"other")]
    path = tmp_path / f"x.{kind}"
    if kind == "tar":
        tar(path, *members)
    else:
        with zipfile.ZipFile(path, "w") as file:
            for member in members:
                file.writestr(*member)
    source = opened(path)
    assert contents(source) == [("a", b"last"), ("b", b"other")]
    assert (source.seen, dropped(source)) == (3, [(1, "a/0.png")])


def test_equal_names_in_several_archives_are_several_images(tmp_path: Path) -> None:
    for number in range(2):
        tar(tmp_path / f"train-{number}.tar", ("a/0.png", b"%d" % number), ("b/0.png", b"b%d" % number))
    assert contents(opened(tmp_path)) == [("a", b"0"), ("a", b"1"), ("b", b"b0"), ("b", b"b1")]


def test_equal_names_of_rows_and_batches_of_rows_are_several_images(tmp_path: Path) -> None:
    """Parquet files are read 256 rows at a time."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [b"%d" % number * (1 + number % 5) for number in range(600)]
    rows = [{"image": {"bytes": one, "path": "0.png"}, "label": number % 2} for number, one in enumerate(images)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    expected = sorted((str(number % 2), one) for number, one in enumerate(images))
    assert sorted(contents(opened(tmp_path / "x.parquet"))) == expected


def test_lengths_of_a_zip_are_those_beside_the_image(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in ("a/0.png", "b/0.png"):
            with file.open(name, "w", force_zip64=True) as member:
                member.write(png(name))
    assert contents(opened(tmp_path / "x.zip")) == [("a", png("a/0.png")), ("b", png("b/0.png"))]


def test_links_in_a_tar_are_counted(tmp_path: Path) -> None:
    path = tar(tmp_path / "x.tar", ("a/0.png", b"0"), ("b/0.png", b"1"))
    with tarfile.open(path, "a") as file:
        link = tarfile.TarInfo("a/1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0.png"
        file.addfile(link, io.BytesIO())
    source = opened(path)
    assert (source.seen, dropped(source)) == (3, [(1, "a/1.png")])


def test_parts_of_a_sample_are_chosen_counted_or_refused(tmp_path: Path) -> None:
    both = [("0.png", b"0"), ("0.json", json.dumps({"label": "b"}).encode()), ("0.cls", b"a")]
    rest = [("1.png", b"1"), ("1.seg.png", b"s"), ("1.cls", b"b"), ("2.cls", b"a")]
    source = opened(tar(tmp_path / "x.tar", *both, *rest))
    assert contents(source) == [("a", b"0"), ("b", b"1")]
    assert sorted(dropped(source)) == [(1, "1.seg.png"), (1, "2")]
    path = tar(tmp_path / "y.tar", *rest, ("3.png", b"3"), ("3.jpg", b"3"), ("3.cls", b"a"))
    with pytest.raises(UserError, match=r"3.png and 3.jpg have the same key, 3"):
        opened(path)
    path = tar(tmp_path / "z.tar", *rest, ("3.png", b"3"), ("3.png", b"4"), ("3.cls", b"a"))
    with pytest.raises(UserError, match=r"has 3.png twice in one sample; remove one"):
        opened(path)
