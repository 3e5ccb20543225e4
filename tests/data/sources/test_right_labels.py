"""Sources that a reader could label wrongly in silence: each image has its label, or there is one line of an error."""

import csv
import json
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.classes import are_places, in_classes_of, places_in
from launcher.data.inspection import match_images
from launcher.data.sources.find import open_source, read_splits, with_classes
from launcher.data.sources.reading import read
from launcher.data.workers import quiet
from launcher.errors import UserError

from ..conftest import words_for
from .archives import draw, error, inspected, png, tar

ROWS = [(f"{split}/{name}/{number}.png", name, split) for split in ("train", "val") for name in ("ant", "bee")
        for number in range(3)]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table(path: Path, rows: list[tuple[str, ...]], head: tuple[str, ...] = ("path", "label", "split")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def test_two_images_of_one_key_are_refused(tmp_path: Path) -> None:
    members = [(f"cam0.000{n}.{kind}", data) for n in "12" for kind, data in (("png", png("ant")), ("cls", n.encode()))]
    text = error(tar(tmp_path / "x.tar", *members), "dataset.val_split=0.5")
    assert "cam0.0001.png and cam0.0002.png have the same key, cam0, since WebDataset ends it at the first dot" in text


def test_keys_that_restart_are_other_samples(tmp_path: Path) -> None:
    for split, shards in (("train", 2), ("val", 1)):
        for shard in range(shards):
            pairs = [
                ((f"{n}.png", png(name)), (f"{n}.cls", name.encode())) for n, name in enumerate(["ant", "bee"] * 3)
            ]
            tar(tmp_path / f"{split}-{shard}.tar", *(one for pair in pairs for one in pair))
    train, val = inspected(tmp_path).splits
    assert (len(train.files), len({*train.files}), train.seen, len(val.files)) == (12, 12, 12, 6)


def test_a_sample_without_a_label_or_with_another_folder_is_refused(tmp_path: Path) -> None:
    whole = [("0.png", png("ant")), ("0.json", b'{"label": "ant"}'), ("1.png", png("bee"))]
    path = tar(tmp_path / "x.tar", *whole)
    assert "1.png has no label; add 1.cls, or a label to 1.json" in error(path, "dataset.val_split=0.5")
    path = tar(tmp_path / "n.tar", *whole[:2], ("2.png", png("bee")), ("2.json", b'{"label": null}'))
    assert "n.tar: 2.png has no label; add it, or remove the sample" in error(path, "dataset.val_split=0.5")
    path.unlink()
    path = tar(tmp_path / "y.tar", ("bee/0.png", png("bee")), ("bee/0.json", b'{"label": "ant"}'))
    assert "has the label ant, but lies in the folder bee" in error(path, "dataset.val_split=0.5")
    tar(tmp_path / "d-train-0.tar", *whole[:2])
    path = tar(tmp_path / "d-train-1.tar", ("ant/0.png", png("ant"))).parent
    (tmp_path / "x.tar").unlink()
    (tmp_path / "y.tar").unlink()
    assert "d-train-1.tar has no labels beside its images" in error(path, "dataset.val_split=0.5")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda rows: [*rows[:2], (rows[2][0], "", "train"), *rows[3:]],
         "row 3 (train/ant/2.png) has no label; add it, or remove the row"),
        (lambda rows: [*rows[:2], ("a,b", "ant", "train", "x"), *rows[3:]], "row 3 has 4 cells, but the first line 3"),
        (lambda rows: [*rows[:2], ("a", "ant"), *rows[3:]], "row 3 has 2 cells, but the first line 3"),
    ],
)  # fmt: skip
def test_rows_that_could_be_read_wrongly_are_named(
    change: Callable[[list[tuple[str, ...]]], list[tuple[str, ...]]], expected: str, tmp_path: Path
) -> None:
    draw(tmp_path, [row[0] for row in ROWS])
    text = error(table(tmp_path / "t.csv", change(ROWS)))
    assert expected in text
    assert "t.csv" in text


def test_nan_is_a_missing_label_and_a_column_twice_is_refused(tmp_path: Path) -> None:
    rows = [{"path": path, "label": float("nan") if n == 4 else label} for n, (path, label, _) in enumerate(ROWS)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert "t.jsonl: row 5 (train/bee/1.png) has no label" in error(tmp_path / "t.jsonl", "dataset.val_split=0.5")
    path = table(tmp_path / "t.csv", [("a.png", "ant", "bee")], ("path", "label", "label"))
    assert "has the column label twice" in error(path, "dataset.val_split=0.5")


@pytest.mark.parametrize(("name", "separator"), [("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", ",")])
def test_a_table_of_other_separators_is_refused(name: str, separator: str, tmp_path: Path) -> None:
    """As spreadsheets write it where a comma is part of numbers."""
    (tmp_path / name).write_text(f"path{separator}label\r\na.png{separator}ant\r\n")
    assert f"separates its cells by {separator!r}; write commas" in error(tmp_path / name, "dataset.val_split=0.5")


def test_what_is_dropped_is_counted_with_a_reason_and_an_example(tmp_path: Path) -> None:
    draw(tmp_path, [row[0] for row in ROWS])
    rows = [*ROWS, ROWS[0], ROWS[0], ("train/ant/1.png", "ant", "holdout"), ("train/ant/1.png", "ant", "")]
    data = inspected(table(tmp_path / "t.csv", rows))  # type: ignore[arg-type]
    train, val = data.splits
    assert (train.seen, len(train.files), val.seen, len(val.files)) == (10, 6, 6, 6)
    first = "train/ant/0.png"
    assert train.facts()["dropped"] == [
        {"reason": "rows with the image and label of an earlier one", "count": 2, "example": f"row 13 ({first})"},
        {"reason": "rows whose split is holdout", "count": 1, "example": "row 15"},
        {"reason": "rows whose split is empty", "count": 1, "example": "row 16"},
    ]
    assert "skipping 2 rows with the image and label of an earlier one, such as row 13 (train/ant/0.png)" in data.notes
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as file:
        for name in (*(row[0] for row in ROWS), "train/0.png", "train/ant/x.txt", "test/ant/0.png", "train/.x.png"):
            file.writestr(name, png(name))
    train, val = inspected(tmp_path / "z.zip").splits
    assert (train.seen, len(train.files), [(one.rows, one.example) for one in train.dropped.values()]) == (
        9, 6, [(1, "0.png"), (1, "test/ant/0.png"), (1, "ant/x.txt")],
    )  # fmt: skip


def test_numbers_are_the_text_of_the_data_set_and_matched_by_name(tmp_path: Path) -> None:
    draw(
        tmp_path / "d", [f"{split}/{name}/0.png" for split in ("train", "val") for name in ("1", "2", "10", "07", "7")]
    )
    data = inspected(tmp_path / "d")
    assert data.classes == ["1", "2", "07", "7", "10"]
    rows = [(f"d/val/{name}/0.png", name) for name in ("1", "2", "10")]
    images, notes, _ = match_images(str(table(tmp_path / "t.csv", rows, ("path", "label"))), data.config, data.classes)
    assert [data.classes[label] for label in images.labels] == ["1", "2", "10"]
    assert notes == ["no images of 2 of the run's 5 classes: 07, 7"]


def test_classes_of_earlier_runs_are_found_by_name() -> None:
    assert places_in(["3", "12", "cat"], ["0003", "0012", "cat"]).tolist() == [0, 1, 2]
    assert places_in(["3", "0003"], ["0003"]).tolist() == [-1, 0]
    assert places_in(["e\u0301te"], ["\u00e9te"]).tolist() == [0]
    assert are_places(["0", "2"], ["ant", "bee", "cow"])
    assert not are_places(["0", "3"], ["ant", "bee", "cow"])
    assert not are_places(["0", "2"], ["1", "2", "3"])


def test_a_resume_keeps_the_order_of_the_runs_classes(tmp_path: Path) -> None:
    """Earlier runs sorted numbers as text: 1, 10, 2."""
    names = [f"{split}/{name}/{n}.png" for split in ("train", "val") for name in ("1", "2", "10") for n in range(2)]
    config = compose(words_for(draw(tmp_path, names))).config
    train, _ = (with_classes(one, ["1", "10", "2"], config) for one in read_splits(config))
    assert [*train.files] == ["1/0.png", "1/1.png", "10/0.png", "10/1.png", "2/0.png", "2/1.png"]
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(UserError, match="other classes than the run's: new 10, missing 3"):
        with_classes(read_splits(config)[0], ["1", "2", "3"], config)
    names, labels = in_classes_of(None, ["a"], train.labels, "x")
    assert (names, labels is train.labels) == (["a"], True)


def test_names_that_differ_in_unicodes_form_are_one_class(tmp_path: Path) -> None:
    draw(tmp_path, ["train/\u00e9te/0.png", "train/tea/0.png", "val/e\u0301te/1.png", "val/tea/1.png"])
    data = inspected(tmp_path)
    assert data.classes == ["tea", "\u00e9te"]
    assert [split.labels.tolist() for split in data.splits] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "labels.json", "x.xlsx", "images.txt"])
def test_a_file_of_another_format_is_refused_with_those_that_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    text = error(tmp_path / name)
    assert ".parquet" in text
    assert ".csv" in text
    assert ("decompress it" in text) == name.endswith("gz")


def test_extensions_in_capitals_and_names_of_windows_are_read(tmp_path: Path) -> None:
    draw(tmp_path, [row[0] for row in ROWS])
    assert len(inspected(table(tmp_path / "T.CSV", ROWS)).splits[0].files) == 6  # type: ignore[arg-type]
    with zipfile.ZipFile(tmp_path / "Z.ZIP", "w") as file:
        for name, _, _ in ROWS:
            file.writestr(name.replace("/", "\\"), png(name))
    assert len(inspected(tmp_path / "Z.ZIP").splits[0].files) == 6


def test_one_image_of_each_class_leaves_none_to_validate_on(tmp_path: Path) -> None:
    draw(tmp_path / "d", ["ant/0.png", "bee/0.png"])
    text = error(tmp_path / "d", "dataset.val_split=0.5")
    assert "one image of each class, so none is left to validate on" in text


def test_validation_images_of_which_none_can_be_read_are_one_line(tmp_path: Path) -> None:
    draw(tmp_path, [row[0] for row in ROWS])
    for path in tmp_path.glob("val/*/*"):
        path.write_bytes(b"no image")
    assert "has no val image that can be read" in error(tmp_path, "dataset.skip_bad=true")


def test_archives_of_two_formats_are_refused(tmp_path: Path) -> None:
    tar(tmp_path / "train.tar", ("ant/0.png", png("ant")))
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as file:
        file.writestr("ant/0.png", png("ant"))
    assert "holds archives of several formats, .tar, .zip" in error(tmp_path, "dataset.val_split=0.5")


def test_an_archive_to_test_on_alone_is_nothing_to_divide(tmp_path: Path) -> None:
    tar(tmp_path / "test.tar", ("ant/0.png", png("ant")), ("bee/0.png", png("bee")))
    assert "has neither a train/ folder nor archives or a table of the train split" in error(
        tmp_path, "dataset.val_split=0.5"
    )


@pytest.mark.parametrize("broken", ["path", "null", "type", "range"])
def test_rows_of_parquet_without_bytes_or_classes_are_named(broken: str, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"image": {"bytes": png(name), "path": None}, "label": 0.0} for _, name, _ in ROWS]
    if broken == "type":
        rows = [{**row, "image": "a.png"} for row in rows]
    elif broken == "range":
        rows[3]["label"] = float("nan")
    else:
        rows[3]["image"] = {"bytes": None, "path": "a.png"} if broken == "path" else None
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    expected = {
        "path": "row 4 has no bytes in image, only the path a.png",
        "null": "row 4 has no bytes in image",
        "type": "has no images in this column, which is of type string",
        "range": "row 4 (000003) has no label",
    }
    assert expected[broken] in error(tmp_path / "x.parquet", "dataset.val_split=0.5")


def test_the_named_column_of_images_is_read(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"left": {"bytes": png(name)}, "image": {"bytes": png("none")}, "label": name} for _, name, _ in ROWS]
    for split in ("train", "test"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{split}.parquet")
    for column in ("left", "image"):
        train, _ = inspected(tmp_path, f"dataset.columns.image={column}").splits
        contents = [read(train.piece(number)) for number in range(len(train.files))]
        names = [train.classes[label] for label in train.labels.tolist()]
        assert contents == [png(name if column == "left" else "none") for name in names]


@pytest.mark.slow
def test_a_row_of_a_large_table_takes_little_memory(tmp_path: Path) -> None:
    count, text = 20_000, "not needed " * 10
    rows = [(f"images/{number % 100}/{number:08}.png", f"c{number % 7}", "train", text) for number in range(count)]
    path = table(tmp_path / "t.csv", rows, ("path", "label", "split", "comment"))
    peaks = []
    for _ in range(3):  # note: threads of other tests may allocate meanwhile
        tracemalloc.start()
        try:
            images = open_source(str(path), "train", quiet)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert len(images.files) == count
    assert min(peaks) < 800 * count


def test_a_table_may_list_any_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = [("../a.png", "ant", "train"), ("/b.png", "bee", "train")]
    images = open_source(str(table(tmp_path / "data" / "t.csv", rows)), "train", quiet)
    assert [images.piece(number).file for number in range(2)] == [f"{tmp_path}/data/../a.png", "/b.png"]
