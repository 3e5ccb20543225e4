"""Sources that are odd but clear: equal names, links, forms that lie beside: read, with what is dropped counted."""

import gzip
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest

from launcher.config.compose import compose
from launcher.data.index import Images
from launcher.data.sources.find import open_source
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.reading import read
from launcher.data.workers import quiet

from .archives import DIVIDED, PLAIN, TABLE, TREE, content, inspected, png, write

PAIRS = {f"{n}.{kind}": data for n, name in enumerate(("ant", "bee") * 3)
         for kind, data in (("png", png(name + "x" * n)), ("cls", name))}  # fmt: skip
IMAGES = dict.fromkeys(TREE)
GZIP = gzip.compress(content("x.tar", PAIRS))
PARTS = {"1.png": b"1", "1.seg.png": b"s", "1.cls": "b", "2.cls": "a"}
SEVERAL = {f"{n}.{kind}": data for n in range(2)
           for kind, data in (("png", b"image"), ("seg.png", b"segments"), ("cls", str(n)))}  # fmt: skip
COLUMNS = [{"left": {"bytes": name.encode()}, "image": {"bytes": b"none"}, "label": name} for name in ("ant", "bee")]
MANY = [b"%d" % number * (1 + number % 5) for number in range(600)]
TWO_LABELS = "image,target,class\n" + "".join(f"{one},a,{'bc'[n % 2]}\n" for n, one in enumerate(TREE))
LINK, LINK_IN_ZIP = tarfile.TarInfo("a/1.png"), zipfile.ZipInfo("train/ant/9.png")
LINK.type, LINK.linkname = tarfile.SYMTYPE, "0.png"
LINK_IN_ZIP.create_system, LINK_IN_ZIP.external_attr = 3, (stat.S_IFLNK | 0o777) << 16

# The path below a folder and its files, as in test_refused.py; words; what was seen and read per split; note, classes.
INSPECTED: list[tuple[str, dict[str, Any], list[str], list[tuple[int, int]], str, list[str]]] = [
    ("", {"train-0.tar": PAIRS, "val-0.tar": PAIRS, "train-1.tar.gz": GZIP}, [], [(7, 6), (6, 6)],
     "skipping 1 file in a compressed form, such as ROOT/train-1.tar.gz", ["ant", "bee"]),
    ("", {"train-0.tar": PAIRS, "train-2.tar": PAIRS, "train-1.tar.gz": GZIP}, [DIVIDED], [(7, 6), (6, 6)],
     "skipping 1 file in a compressed form, such as ROOT/train-1.tar.gz", ["ant", "bee"]),
    ("", {"train-0.tar": PAIRS, "train-1.tar": PAIRS, "val-0.tar": PAIRS}, [], [(12, 12), (6, 6)], "", ["ant", "bee"]),
    ("t", {**IMAGES, "t/train.csv": PLAIN, "t/val.csv": PLAIN, "t/test.csv": PLAIN}, [], [(13, 12), (12, 12)],
     "skipping 1 table of no split that is read, such as ROOT/t/test.csv", ["ant", "bee"]),
    ("t.csv", {**IMAGES, "t.csv": TABLE.replace(",val", ",test")}, [DIVIDED], [(8, 2), (4, 4)],
     "skipping 6 rows whose split is test, such as row 7", ["ant", "bee"]),
    ("t.csv", {**IMAGES, "t.csv": TABLE.replace(",val", ",1").replace(",train", ",2")}, [DIVIDED], [(6, 6), (6, 6)],
     "", ["ant", "bee"]),
    ("", {**IMAGES, "train-0.tar": PAIRS, "val.csv": "path,label\n"}, [], [(6, 6), (6, 6)],
     "ignoring ROOT/train-0.tar, ROOT/val.csv, since class folders lie beside", ["ant", "bee"]),
    ("x.zip", {"x.zip": [*IMAGES.items(), (LINK_IN_ZIP, "0.png")]}, [], [(7, 6), (6, 6)],
     "skipping 1 link in an archive, or other special files, such as train/ant/9.png", ["ant", "bee"]),
    ("x.tar", {"x.tar": {name.replace("ant", "\udce9t\udce9"): None for name in TREE}}, [], [(6, 6), (6, 6)],
     "", ["bee", "\udce9t\udce9"]),
    ("", dict.fromkeys(["train/\u00e9te/0.png", "train/tea/0.png", "val/e\u0301te/1.png", "val/tea/1.png"]), [],
     [(2, 2), (2, 2)], "", ["tea", "\u00e9te"]),
    ("T.CSV", {**IMAGES, "T.CSV": TABLE}, [], [(6, 6), (6, 6)], "", ["ant", "bee"]),
    ("Z.ZIP", {"Z.ZIP": {name.replace("/", "\\"): None for name in TREE}}, [], [(6, 6), (6, 6)], "", ["ant", "bee"]),
    ("t.csv", {**IMAGES, "t.csv": TWO_LABELS}, [DIVIDED, "dataset.columns.label=class"], [(6, 6), (6, 6)], "",
     ["b", "c"]),
]  # fmt: skip


@pytest.mark.parametrize(("at", "files", "words", "counts", "note", "classes"), INSPECTED)
def test_an_odd_source_is_read_and_noted(
    at: str, files: Any, words: list[str], counts: list[tuple[int, int]], note: str, classes: list[str], tmp_path: Path
) -> None:
    write(tmp_path, files)
    for _ in range(2):  # what was listed is kept
        data = inspected(tmp_path / at, *words)
        assert data.classes == classes
        assert any(note.replace("ROOT", str(tmp_path)) in one for one in data.notes) or not note
        for split in data.splits:
            assert len({*split.names}) == len(split)
            named = [normalize("NFC", file.split("/")[0]) for file in split.names]
            assert [classes[label] for label in split.labels] == named
            assert {*named} == {*classes}
        assert [(split.seen, len(split)) for split in data.splits] == counts


def contents(source: Images) -> list[tuple[str, bytes]]:
    pieces = [read(source.piece(number)) for number in range(len(source))]
    return sorted((source.classes[label], data) for label, data in zip(source.labels.tolist(), pieces, strict=True))


EQUAL = [("a/0.png", b"first"), ("a/0.png", b"last"), ("b/0.png", b"other")]
OPENED: list[tuple[str, dict[str, Any], str, list[tuple[str, bytes]], list[tuple[int, str]]]] = [
    ("x.tar", {"x.tar": EQUAL}, "null", [("a", b"last"), ("b", b"other")], [(1, "a/0.png")]),
    ("x.zip", {"x.zip": EQUAL}, "null", [("a", b"last"), ("b", b"other")], [(1, "a/0.png")]),
    ("", {f"train-{n}.tar": {"a/0.png": b"%d" % n, "b/0.png": b"b%d" % n} for n in range(2)}, "null",
     [("a", b"0"), ("a", b"1"), ("b", b"b0"), ("b", b"b1")], []),
    # Parquet files are read 256 rows at a time
    ("x.parquet", {"x.parquet": [{"image": {"bytes": one, "path": "0.png"}, "label": n % 2}
                                 for n, one in enumerate(MANY)]}, "null",
     sorted((str(n % 2), one) for n, one in enumerate(MANY)), []),
    ("x.tar", {"x.tar": [("a/0.png", b"0"), ("b/0.png", b"1"), ("", LINK)]}, "null", [("a", b"0"), ("b", b"1")],
     [(1, "a/1.png")]),
    ("x.tar", {"x.tar": {"0.png": b"0", "0.json": '{"label": "b"}', "0.cls": "a", **PARTS}}, "null",
     [("a", b"0"), ("b", b"1")], [(1, "1.seg.png"), (1, "2")]),
    ("x.tar", {"x.tar": SEVERAL}, "null", [("0", b"image"), ("1", b"image")], [(2, "0.seg.png")]),
    ("x.tar", {"x.tar": SEVERAL}, "seg.png", [("0", b"segments"), ("1", b"segments")], [(2, "0.png")]),
    ("x.parquet", {"x.parquet": COLUMNS}, "left", [("ant", b"ant"), ("bee", b"bee")], []),
    ("x.parquet", {"x.parquet": COLUMNS}, "image", [("ant", b"none"), ("bee", b"none")], []),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("at", "files", "column", "expected", "dropped"), OPENED)
def test_each_image_has_its_bytes_and_label(
    at: str, files: Any, column: str, expected: list[Any], dropped: list[tuple[int, str]], tmp_path: Path
) -> None:
    config = compose(["dataset=image_folder", f"dataset.columns.image={column}"]).config
    source = open_source(str(write(tmp_path, files) / at), "all", quiet, SourceOptions(config.dataset.columns))
    assert contents(source) == expected
    assert sorted((one.rows, one.example) for one in source.dropped.values()) == dropped
    assert source.seen == len(source) + sum(one.rows for one in source.dropped.values())


def test_lengths_of_a_zip_are_those_beside_the_image(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        for name in ("a/0.png", "b/0.png"):
            with file.open(name, "w", force_zip64=True) as member:
                member.write(png(name))
    source = open_source(str(tmp_path / "x.zip"), "all", quiet)
    assert contents(source) == [("a", png("a/0.png")), ("b", png("b/0.png"))]
