"""The same tree of files is the same data set, or the same error, as a folder, zip, tar or bucket (random trees)."""

import random
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from launcher.data.index import Images
from launcher.data.sources.find import open_source
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.layout import Wanted
from launcher.data.sources.reading import read
from launcher.data.workers import quiet
from launcher.errors import UserError
from tests.covering import sweep

# Names of folders, by how likely they are: classes, splits in several spellings, numbers, and what is ignored.
FOLDERS = ["ant", "bee", "cow", "train", "train", "val", "test", "valid", "Training", "7", "07", "12", "3", "\u00e9te",
           "e\u0301te", "ffcv", "__MACOSX", ".git", "a.b", "monday"]  # fmt: skip
FILES = ["0.jpg", "1.png", "2.JPG", "a.b.jpg", "notes.txt", "._0.jpg", "Thumbs.db"]
WANTED: list[Wanted] = ["train", "val", "all", "evaluation"]


def tree(seed: int) -> list[str]:
    """Return paths of files: a usual layout that is changed at random, so that many are valid."""
    draw = random.Random(seed)
    splits = draw.choice([["train", "val"], ["train", "test"], ["train", "valid"], [""], ["train"], FOLDERS[:9]])
    classes = draw.sample(FOLDERS[:1] + FOLDERS, draw.randint(1, 4))
    paths = {
        "/".join(filter(None, [split, name, draw.choice(["", "", "monday", "a.b"]), draw.choice(FILES)]))
        for split in splits
        for name in classes
        for _ in range(draw.randint(1, 4))
    }
    for _ in range(draw.choice([0, 0, 1, 3])):
        paths.add("/".join([*draw.choices(FOLDERS, k=draw.randint(0, 3)), draw.choice(FILES)]))
    top = draw.choice(["", "", "", "pets/", "pets/all/"])
    # note: a path that is a folder of another cannot be a file
    return sorted(f"{top}{path}" for path in paths if not any(one.startswith(f"{path}/") for one in paths))


def as_folder(paths: list[str], to: Path) -> Path:
    for path in paths:
        (to / "d" / path).parent.mkdir(parents=True, exist_ok=True)
        (to / "d" / path).write_bytes(path.encode())
    return to / "d"


def as_zip(folder: Path, paths: list[str], to: Path) -> str:
    with zipfile.ZipFile(to / "d.zip", "w") as file:
        for path in paths:
            file.writestr(path, path.encode())
    return str(to / "d.zip")


def as_tar(folder: Path, paths: list[str], to: Path) -> str:
    with tarfile.open(to / "d.tar", "w") as file:
        file.add(folder, ".")
    return str(to / "d.tar")


def as_bucket(folder: Path, paths: list[str], to: Path) -> str:
    system = fsspec.filesystem("memory")
    for path in paths:
        system.pipe_file(f"/{to.name}/{path}", path.encode())
    return f"memory://{to.name}"


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    fsspec.filesystem("memory").store.clear()


def outcome(path: str, wanted: Wanted) -> Any:
    """Return the classes, names, labels and contents of a data set, and its drops; or that it is refused."""
    try:
        source = open_source(path, wanted, quiet, SourceOptions(), is_prepared=True)
    except UserError as error:
        return "refused" if "\n" not in str(error) else str(error)
    assert source.seen == len(source) + sum(one.rows for one in source.dropped.values())
    return source.classes, *images(source)


def images(source: Images) -> tuple[list[str], list[str], list[bytes]]:
    pieces = source.pieces()
    labels = [source.classes[label] for label in source.labels.tolist()]
    contents = sorted(zip(labels, (read(piece) for piece in pieces), strict=True))
    return sorted(labels), [label for label, _ in contents], [data for _, data in contents]


@pytest.mark.parametrize("start", sweep([0, 40, 80, 120], [0]))
def test_a_tree_is_the_same_data_set_in_each_source(start: int, tmp_path: Path) -> None:
    valid = 0
    for seed in range(start, start + 40):
        paths, to = tree(seed), tmp_path / str(seed)
        folder = as_folder(paths, to)
        sources = [write(folder, paths, to) for write in (as_zip, as_tar, as_bucket)]
        for wanted in WANTED:
            expected = outcome(str(folder), wanted)
            valid += expected != "refused"
            for source in sources:
                assert outcome(source, wanted) == expected, (seed, wanted, source, paths)
        shutil.rmtree(to)
    assert valid > 40


@pytest.mark.parametrize(
    ("paths", "wanted", "classes"),
    [
        (["vehicles/bus/0.png", "vehicles/car/0.png", "vehicles/train/0.png"], "all", ["bus", "car", "train"]),
        (["ant/monday/0.png", "ant/friday/0.png", "bee/monday/0.png"], "all", ["ant", "bee"]),
        (["a/ant/0.png", "b/ant/0.png"], "all", ["a", "b"]),
        (["train/1/0.png", "train/10/0.png", "train/2/0.png", "val/2/0.png"], "train", ["1", "2", "10"]),
        (["train/7/0.png", "train/07/0.png"], "train", ["07", "7"]),
        (["Training/ant/0.png", "Testing/ant/0.png"], "all", None),
        (["train/ant/0.png", "train/bee/0.png", "raw/ant/0.png"], "all", None),
        (["ant/0.png", "train/cow/0.png", "val/cow/0.png"], "all", None),
        (["train/ant/0.png", "val/ant/0.png", "test/bee/0.png"], "val", ["ant"]),
    ],
)
def test_the_classes_of_some_trees(paths: list[str], wanted: Wanted, classes: list[str] | None, tmp_path: Path) -> None:
    folder = as_folder(paths, tmp_path)
    for source in [str(folder), *(write(folder, paths, tmp_path) for write in (as_zip, as_tar, as_bucket))]:
        found = outcome(source, wanted)
        assert (None if found == "refused" else found[0]) == classes, source
