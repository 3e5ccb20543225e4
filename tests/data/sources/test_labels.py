"""Several labels and numbers an image, from every kind of table, through both loaders."""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from launcher.config.compose import compose
from launcher.data.classes import class_counts
from launcher.data.identity import identity
from launcher.data.inspection import held_out, inspect_data, match_images
from launcher.errors import UserError
from tests.data.conftest import make_loaders, write_files

from .archives import write

LABELS = [["cat"], ["dog", "cat"], [], ["12", "dog"]] * 4
NUMBERS = [[0.5, -2.0], [1e4, 3.0], [-7.25, 0.0], [2.0, 1.0]] * 4
NAMES = ["12", "cat", "dog"]
MULTILABEL, REGRESSION = (["task=multilabel", "loss=bce"], ["task=regression", "loss=mse"])


def drawn(number: int, size: int = 5) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 32), (9 * number, size, 7)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the same images with a table in each format; CSV has no lists."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("csv", "jsonl", "parquet")}
    for split in ("train", "val"):
        images = {f"{split}-{number}.png": drawn(number, len(split)) for number in range(len(LABELS))}
        flat = [
            {"image": name, "label": "|".join(labels), "x": x, "y": y, **{one: int(one in labels) for one in NAMES}}
            for name, labels, (x, y) in zip(images, LABELS, NUMBERS, strict=True)
        ]
        made = [{**row, "tags": tags, "point": xy} for row, tags, xy in zip(flat, LABELS, NUMBERS, strict=True)]
        stored = [{**row, "image": {"bytes": images[row["image"]], "path": row["image"]}} for row in made]
        write(folders["csv"], {**images, f"{split}.csv": flat})
        write(folders["jsonl"], {**images, f"{split}.jsonl": made})
        write(folders["parquet"], {f"{split}-0.parquet": stored})
    return folders


def labels_of(
    folder: Path, *words: str, loader: str = "torchvision"
) -> tuple[list[str] | None, dict[tuple[int, ...], list[float]]]:
    """Return the names of labels, and those of the training images by their first pixel, through the loader."""
    loaders = make_loaders(folder, f"dataloader={loader}", "image.flip=0", *words)
    labels = {
        tuple(image[:, 0, 0].tolist()): row.tolist()
        for images, rows, _ in loaders.train.epoch(0)
        for image, row in zip(images, rows, strict=True)
    }
    names = loaders.evaluate.reader.classes
    loaders.close()
    return names, labels


def expected(values: list[list[Any]]) -> dict[tuple[int, ...], list[float]]:
    return {(9 * number, 5, 7): row for number, row in enumerate(values)}


CLASSES = expected([[float(name in row) for name in NAMES] for row in LABELS])


@pytest.mark.parametrize(
    ("table", "column"),
    [("csv", "label"), ("csv", "[12,cat,dog]"), ("jsonl", "tags"), ("jsonl", "label"), ("parquet", "tags"),
     ("parquet", "[12,cat,dog]")],
)  # fmt: skip
def test_several_labels_are_read_from_texts_lists_and_columns(tables: dict[str, Path], table: str, column: str) -> None:
    column = column.replace("12", "'12'")
    assert labels_of(tables[table], *MULTILABEL, f"dataset.columns.label={column}") == (NAMES, CLASSES)


@pytest.mark.parametrize(
    ("table", "column"),
    [("csv", "[x,y]"), ("jsonl", "point"), ("jsonl", "[x,y]"), ("parquet", "point"), ("parquet", "[x,y]")],
)
def test_numbers_are_read_from_lists_and_columns(tables: dict[str, Path], table: str, column: str) -> None:
    names, labels = labels_of(tables[table], *REGRESSION, f"dataset.columns.label={column}")
    assert names == (["x", "y"] if column == "[x,y]" else ["point 0", "point 1"])
    assert labels == expected(NUMBERS)


@pytest.mark.parametrize(
    ("words", "head", "labels", "expected", "notes"),
    [
        (MULTILABEL, "label", ["dog|bird", "", "12"], [[0, 0, 1], [0, 0, 0], [1, 0, 0]],
         ["skipping 1 class that", "no images of 1 of the run's 3 classes: cat"]),
        ([], "label", ["dog", "bird", "12"], [0, 2], ["skipping 1 class that", "no images of 1 of the run's"]),
        ([*REGRESSION, "dataset.columns.label=['12',cat,dog]"], "12,cat,dog", ["3,1,2", "7,8,9", "5,0,-1"],
         [[3, 1, 2], [7, 8, 9], [5, 0, -1]], []),
        (MULTILABEL, "label", ["bird", "", "fish"], "contains no class of the run; its classes are bird, fish", []),
        ([*REGRESSION, "dataset.columns.label=label"], "label", ["1", "2", "3"], "has the numbers label, but", []),
    ],
)  # fmt: skip
def test_other_images_get_the_labels_of_the_run_by_name(
    tmp_path: Path, words: list[str], head: str, labels: list[str], expected: Any, notes: list[str]
) -> None:
    """The table has no split: all its images are evaluated."""
    lines = [f"image,{head}", *(f"{number}.png,{label}" for number, label in enumerate(labels))]
    (tmp_path / "other.csv").write_text("\n".join(lines))
    config, path = compose(["dataset=image_folder", *words]).config, str(tmp_path / "other.csv")
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            match_images(path, config, NAMES)
        return
    images, found, _ = match_images(path, config, NAMES)
    by_file = {Path(images.piece(number).file).stem: row.tolist() for number, row in enumerate(images.labels)}
    assert [by_file[name] for name in sorted(by_file)] == (expected if words else expected[::-1])
    assert all(one.startswith(start) for one, start in zip(found, notes, strict=True))


@pytest.mark.parametrize(
    ("words", "values"), [([*MULTILABEL], CLASSES), ([*REGRESSION, "dataset.columns.label=[x,y]"], expected(NUMBERS))]
)
def test_ffcv_files_have_the_same_labels(
    tables: dict[str, Path], tmp_path: Path, words: list[str], values: Any
) -> None:
    words = [*words, f"dataloader.folder={tmp_path}", "dataloader.files.jpeg_share=0.0"]
    write_files(tables["csv"], *words)
    assert labels_of(tables["csv"], *words, loader="ffcv")[1] == values


def test_a_table_without_a_split_is_divided(tables: dict[str, Path]) -> None:
    path = f"dataset.path={tables['csv']}/train.csv"
    words = ["dataset=image_folder", path, "dataset.val_split=0.25", "batch_size=8"]
    for more in (MULTILABEL, [*REGRESSION, "dataset.columns.label=x"]):
        inspection = inspect_data(compose([*words, *more]).config, must_exist=True)
        train, val = inspection.splits
        assert (len(train), len(val)) == (12, 4)
        assert not {*train.names} & {*val.names}
        assert "drawn by seed=42" in inspection.notes[0]


def test_an_image_without_a_label_has_the_same_identity_as_in_a_run(tables: dict[str, Path]) -> None:
    config = compose(["dataset=image_folder", f"dataset.path={tables['csv']}", *MULTILABEL]).config
    assert identity(config) == identity(replace(config, dataset=replace(config.dataset, path=str(tables["jsonl"]))))


def test_an_image_in_two_rows_is_noted_as_two_rows(tmp_path: Path) -> None:
    images = {f"{number}.png": drawn(number) for number in range(6)}
    rows = [("image", "label"), *((name, label) for label in ("red", "round") for name in images)]
    write(tmp_path, {**images, "t.csv": rows})
    words = ["dataset=image_folder", f"dataset.path={tmp_path / 't.csv'}", f"dataset.test_path={tmp_path / 't.csv'}"]
    notes = inspect_data(compose([*words, "dataset.val_split=0.1", *MULTILABEL]).config, must_exist=True).notes
    text = "\n".join(notes)
    assert "rows with the image of a row of another label, so they contradict each other; write one row" in text
    assert "copies of others" not in text
    assert ".png = " not in text


def test_a_table_may_have_spaces_and_is_refused_without_its_images(tmp_path: Path) -> None:
    table, text = tmp_path / "t.csv", "image , label\n0.png , ant\n1.png,ant\n2.png, bee \n3.png,bee\n"
    write(tmp_path, {**{f"{number}.png": drawn(number) for number in range(4)}, "t.csv": text})
    config = compose(["dataset=image_folder", f"dataset.path={table}", "dataset.val_split=0.5"]).config
    assert inspect_data(config, must_exist=True).classes == ["ant", "bee"]
    table.write_text(text.replace("ant", "ant|x"))
    assert any("such as ant|x; set task=multilabel" in note for note in inspect_data(config, must_exist=True).notes)
    (tmp_path / "3.png").unlink()
    of_test = replace(config, dataset=replace(config.dataset, test_path=str(table)))
    for check in (partial(inspect_data, config, must_exist=True), partial(held_out, of_test, ["ant|x", "bee"])):
        with pytest.raises(UserError, match=r"t.csv: 1 of the 4 images that it lists do not exist: .*3.png; restore"):
            check()


def test_each_label_of_an_image_counts() -> None:
    labels = np.array(list(CLASSES.values()), np.uint8)
    assert class_counts(labels, 3).tolist() == [4, 8, 8]


def test_hugging_faces_image_folder_has_a_table_in_each_split(tmp_path: Path) -> None:
    for split, name, count in (("train", "metadata.jsonl", 6), ("validation", "metadata.csv", 4)):
        images = {f"{number}.png": drawn(number, count) for number in range(count)}
        made = [{"file_name": one, "label": "ab"[number % 2]} for number, one in enumerate(images)]
        write(tmp_path / split, {**images, name: made})
    config = compose(["dataset=image_folder", f"dataset.path={tmp_path}", "batch_size=2"]).config
    train, val = inspect_data(config, must_exist=True).splits
    assert (train.classes, len(train), len(val)) == (["a", "b"], 6, 4)
    # note: images in class folders may have metadata of another kind beside them
    for split in ("train", "validation"):
        for number in range(4):
            (below := tmp_path / split / "ab"[number % 2]).mkdir(exist_ok=True)
            (tmp_path / split / f"{number}.png").rename(below / f"{number}.png")
    assert len(inspect_data(config, must_exist=True).splits[0].names) == 4
