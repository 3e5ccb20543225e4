"""Images have the label of their name, and what is dropped is counted with a reason."""

import tracemalloc
from pathlib import Path

import pytest

from launcher.config.compose import compose
from launcher.data.classes import are_places, in_classes_of, places_in
from launcher.data.inspection import match_images
from launcher.data.sources.find import open_source, read_splits, with_classes
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.shards import split_of
from launcher.data.workers import quiet
from launcher.errors import UserError

from ..conftest import words_for
from .archives import TABLE, TREE, classes_of, inspected, png, write


def test_what_is_dropped_is_counted_with_a_reason_and_an_example(tmp_path: Path) -> None:
    first = "train/ant/0.png"
    more = f"{first},ant,train\n" * 2 + "train/ant/1.png,ant,holdout\ntrain/ant/1.png,ant,\n"
    names = (*TREE, "train/0.png", "train/ant/x.txt", "test/ant/0.png", "train/.x.png")
    write(tmp_path, {**dict.fromkeys(TREE), "t.csv": TABLE + more, "z.zip": dict.fromkeys(names)})
    data = inspected(tmp_path / "t.csv")
    train, val = data.splits
    assert (train.seen, len(train), val.seen, len(val)) == (10, 6, 6, 6)
    assert train.facts()["dropped"] == [
        {"reason": "rows with the image and label of an earlier one", "count": 2, "example": f"row 13 ({first})"},
        {"reason": "rows whose split is holdout", "count": 1, "example": "row 15"},
        {"reason": "rows whose split is empty", "count": 1, "example": "row 16"},
    ]
    assert "skipping 2 rows with the image and label of an earlier one, such as row 13 (train/ant/0.png)" in data.notes
    train, val = inspected(tmp_path / "z.zip").splits
    assert (train.seen, len(train), [(one.rows, one.example) for one in train.dropped.values()]) == (
        9, 6, [(1, "0.png"), (1, "test/ant/0.png"), (1, "ant/x.txt")],
    )  # fmt: skip


def test_numbers_are_the_text_of_the_data_set_and_matched_by_name(tmp_path: Path) -> None:
    write(tmp_path, [f"d/{split}/{name}/0.png" for split in ("train", "val") for name in ("1", "2", "10", "07", "7")])
    data = inspected(tmp_path / "d")
    assert data.classes == ["1", "2", "07", "7", "10"]
    rows = [("path", "label"), *((f"d/val/{name}/0.png", name) for name in ("1", "2", "10"))]
    images, notes, _ = match_images(str(write(tmp_path, {"t.csv": rows}) / "t.csv"), data.config, data.classes)
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
    config = compose(words_for(write(tmp_path, names))).config
    train, _ = (with_classes(one, ["1", "10", "2"], config) for one in read_splits(config))
    assert [*train.names] == ["1/0.png", "1/1.png", "10/0.png", "10/1.png", "2/0.png", "2/1.png"]
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(UserError, match="other classes than the run's: new 10, missing 3"):
        with_classes(read_splits(config)[0], ["1", "2", "3"], config)
    names, labels = in_classes_of(None, ["a"], train.labels, "x")
    assert (names, labels is train.labels) == (["a"], True)


@pytest.mark.slow
def test_a_row_of_a_large_table_takes_little_memory(tmp_path: Path) -> None:
    count, text = 20_000, "not needed " * 10
    rows = [(f"images/{number % 100}/{number:08}.png", f"c{number % 7}", "train", text) for number in range(count)]
    path = write(tmp_path, {"t.csv": [("path", "label", "split", "comment"), *rows]}) / "t.csv"
    peaks = []
    for _ in range(3):  # note: threads of other tests may allocate meanwhile
        tracemalloc.start()
        try:
            images = open_source(str(path), "train", quiet)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert len(images) == count
    assert min(peaks) < 800 * count


def test_a_table_may_list_any_file(tmp_path: Path) -> None:
    write(tmp_path, {"data/t.csv": "path,label,split\n../a.png,ant,train\n/b.png,bee,train\n"})
    images = open_source(str(tmp_path / "data" / "t.csv"), "train", quiet)
    assert [images.piece(number).file for number in range(2)] == [f"{tmp_path}/data/../a.png", "/b.png"]


def test_a_split_is_a_whole_word_of_a_name() -> None:
    splits = {"a-train-0.tar": "train", "data/Test.tar": "test", "val/0.tar": "val", "x_valid.tar": "valid"}
    none = ("retrain.tar", "latest-0.tar", "interval.tar", "trained.tar", "tests/0.tar")
    assert {name: split_of(name) for name in (*splits, *none)} == {**splits, **dict.fromkeys(none, "")}


def test_an_image_of_several_labels_may_have_none_in_a_column_of_named_classes(tmp_path: Path) -> None:
    rows = classes_of(["dog", "cat"], [{"image": png("x"), "label": label} for label in (1, None, 0)])
    path = write(tmp_path, {"x.parquet": rows}) / "x.parquet"
    source = open_source(str(path), "all", quiet, SourceOptions(labelled="classes"))
    labels = {file: source.classes[label] for file, label in zip(source.names, source.labels.tolist(), strict=True)}
    assert (source.classes, labels) == (["dog", "cat", ""], {"dog/000002": "dog", "cat/000000": "cat", "/000001": ""})
