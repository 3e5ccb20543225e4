"""Folders of users: the images that are read, and the notes and errors."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from PIL import Image

from launcher.config.compose import compose
from launcher.data.inspection import inspect_data
from launcher.errors import UserError
from tests.images import write_images

from .conftest import words_for

Change = Callable[[Path], object]
# Counts of the folder of every case before its changes, and after a change.
READ, ONE_MORE, THREE = "2 classes, 6 + 2 images", "2 classes, 7 + 2 images", "3 classes, 7 + 3 images"
CASE = "class folders differ in case only: Cat and cat; rename them if they are one class"
SPLIT = "; to validate on a tenth of the images in train/CLASS/ or CLASS/, set dataset.val_split=0.1"
LINK = "link out of the split's folder or to a folder below a class, such as"
LINKS = "links out of the split's folder or to a folder below a class, such as"
FOLLOW = "set dataset.links=follow to read them"
BROKEN = "names of a broken or looping link, a pipe or a device, such as"
ONE_NAME, NAMES = (f"{files} without an image extension, such as" for files in ("1 file", "3 files"))
COPY = "1 training image is a copy of another: /train/"
LEFTOVERS = [
    *("train/.git/1.png", "train/__MACOSX/1.png", "train/.ipynb_checkpoints/1.png"),
    *("train/cat/@eaDir/1.png", "train/cat/._0.png", "train/lost+found/1.png", "train/$RECYCLE.BIN/1.png"),
    *("train/#recycle/1.png", "train/System Volume Information/1.png"),
]
UNTRAINED = "error: 1 class has no training images: {} (1 validation image); add some, or remove it; {}"
NO_CLASSES = "error: /{0} contains no class folders; expected /{0}/CLASS/*.jpg"
NO_TRAIN = "error: has no train/ folder; expected /train/CLASS/*.jpg"
NO_VAL = "error: has no val/ folder; expected /val/CLASS/*.jpg"


def image(name: str | bytes, mode: str = "RGB", size: tuple[int, int] = (9, 7), **options: object) -> Change:
    """Write an image, in new folders, by its extension."""

    def write(path: Path) -> None:
        file = Path(os.fsdecode(os.path.join(os.fsencode(path), os.fsencode(name))))  # noqa: PTH118 - bytes
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (len(os.fsencode(name)), 9, 200)).convert(mode).save(file, **options)

    return write


def file(name: str, content: bytes = b"") -> Change:
    return lambda path: (path / name).write_bytes(content)


def link(name: str, target: str) -> Change:
    return lambda path: (path / name).symlink_to(target)


def move(name: str, target: str) -> Change:
    def rename(path: Path) -> None:
        (path / target).parent.mkdir(parents=True, exist_ok=True)
        (path / name).rename(path / target)

    return rename


def remove(name: str) -> Change:
    return lambda path: shutil.rmtree(path / name)


def folder(name: str) -> Change:
    return lambda path: (path / name).mkdir(parents=True)


def pipe(name: str) -> Change:
    return lambda path: os.mkfifo(path / name)


def frames(path: Path) -> None:
    first, second = (Image.new("RGB", (9, 7), color) for color in ("red", "blue"))
    first.save(path / "train/cat/x.gif", save_all=True, append_images=[second])


def case(name: str, changes: list[Change], *expected: str, words: str = "") -> ParameterSet:
    return pytest.param(changes, expected, words, id=name)


CAPITALS = [move("train", "Train"), move("val", "Val")]
CLASSES = [
    case("nothing odd", [], READ),
    case("classes that differ in case", [image("train/Cat/9.png"), image("val/Cat/8.jpg")], THREE, CASE),
    case("a validation class that differs in case", [move("val/cat", "val/Cat")], UNTRAINED.format("Cat", CASE)),
    case(
        "odd names",
        [image(b"train/cat/\xff \n\xe7\x8c\xab.png"), move("train/dog", "train/a\nb"), move("val/dog", "val/a\nb")],
        ONE_MORE,
    ),
    case("a class that is not UTF-8", [image(b"train/\xe9/0.png"), image(b"val/\xe9/01.png")], THREE),
]
LAYOUTS = [
    case(
        "images beside the classes",
        [image("train/9.png")],
        READ,
        "skipping 1 image beside the class folders, not in one, such as 9.png",
    ),
    case(
        "files of other programs",
        [*map(image, LEFTOVERS), file("train/cat/Thumbs.db"), file("train/.DS_Store")],
        READ,
        f"skipping {ONE_NAME} cat/Thumbs.db",
    ),
    case(
        "an extension that is not read",
        [move(f"train/cat/{number}.jpg", f"train/cat/{number}.cr2") for number in range(3)],
        UNTRAINED.format("cat", f"skipping {NAMES} cat/0.cr2"),
    ),
    case("a flat folder", [remove("train"), remove("val"), image("0.png")], f"{NO_TRAIN}{SPLIT}"),
    case("flat splits", [remove("train"), image("train/0.png")], NO_CLASSES.format("train")),
    case("splits in capitals", CAPITALS, f"{NO_TRAIN}; rename Train to train"),
    case("a validation split in capitals", [move("val", "Val")], f"{NO_VAL}; rename Val to val"),
    case("a validation split of another name", [move("val", "Testing")], f"{NO_VAL}; rename Testing to val"),
    case(
        "splits in capitals as classes",
        CAPITALS,
        "error: holds Train, Val, which are splits, not classes; rename them to train and val",
        words="dataset.val_split=0.1",
    ),
    case(
        "splits one folder deeper",
        [move("train", "pets/train"), move("val", "pets/val")],
        READ,
    ),
    case(
        "a test split without training images",
        [move("train", "images"), move("val", "test")],
        NO_TRAIN,
        words="dataset.val_split=0.1",
    ),
    case("no validation images", [remove("val")], f"{NO_VAL}{SPLIT}"),
    case(
        "the working folder with its runs and what a volume has",
        [
            *(move("train/cat", "cat"), move("train/dog", "dog"), remove("train"), remove("val")),
            *(image("runs/a/curve.png"), file("runs/a/config.yaml"), file("runs/a/metrics.jsonl")),
            image("lost+found/1.png"),
        ],
        "2 classes, 4 + 2 images",
        "dataset.val_split=0.3: holding out 2 of 6 images, drawn from each class by seed=42",
        words="dataset.val_split=0.3",
    ),
    case(
        "Roboflow's table beside its images",
        [remove("train"), remove("val"), image("train/0.jpg"), image("valid/0.jpg"), file("train/_classes.csv")],
        f"{NO_CLASSES.format('train')}; to read its table, set dataset.path=/train/_classes.csv dataset.val_split=0.1",
    ),
    case("a file named val", [remove("val"), file("val")], f"{NO_VAL}{SPLIT}"),
    case("an empty val/", [remove("val"), folder("val")], NO_CLASSES.format("val") + SPLIT),
    case("test/ without classes", [remove("val"), image("test/0.png")], NO_CLASSES.format("test") + SPLIT),
]
ENTRIES = [
    case(
        "a link within the split", [link("train/cat/9.jpg", "0.jpg")], ONE_MORE, f"{COPY}cat/9.jpg = /train/cat/0.jpg"
    ),
    case(
        "links that are not followed",
        [
            *(link("train/loop", "loop"), link("train/cat/up", ".."), link("train/cat/8.jpg", "/nowhere.jpg")),
            *(link("train/cat/9.jpg", "../../val/cat/0.jpg"), folder("train/cat/7.jpg")),
        ],
        READ,
        f"skipping 2 {LINKS} /train/cat/9.jpg; {FOLLOW}",
        f"skipping 2 {BROKEN} /train/cat/8.jpg",
    ),
    case("pipes", [pipe("train/cat/9.jpg"), pipe("train/pipe")], READ, f"skipping 2 {BROKEN} /train/cat/9.jpg"),
    case(
        "a class that is a link to elsewhere",
        [move("train/dog", "dogs"), link("train/dog", "../dogs")],
        UNTRAINED.format("dog", f"skipping 1 {LINK} /train/dog; {FOLLOW}"),
    ),
    case(
        "classes that are all links to elsewhere",
        [move("train", "all"), folder("train"), link("train/dog", "../all/dog")],
        f"{NO_CLASSES.format('train')}; skipping 1 {LINK} /train/dog; {FOLLOW}",
    ),
    case(
        "a link to elsewhere that is followed",
        [move("train/dog", "dogs"), link("train/dog", "../dogs")],
        READ,
        "ignoring /dogs, which lie beside the splits",
        words="dataset.links=follow",
    ),
    case("a looping link named val", [remove("val"), link("val", "val")], f"{NO_VAL}{SPLIT}"),
]
MODES = (("CMYK", "jpg"), ("P", "png"), ("LA", "png"), ("1", "png"), ("L", "jpg"), ("RGBA", "webp"))
IMAGES = [
    *(case(mode, [image(f"train/cat/9.{kind}", mode)], ONE_MORE) for mode, kind in MODES),
    case("an animation", [frames], ONE_MORE),
    case("one pixel", [image("train/cat/9.png", size=(1, 1))], ONE_MORE),
    case("a PNG named as a JPEG", [image("train/cat/9.jpg", format="PNG")], ONE_MORE),
]


@pytest.mark.parametrize(("changes", "expected", "words"), [*CLASSES, *LAYOUTS, *ENTRIES, *IMAGES])
def test_an_odd_folder_is_read_or_refused(
    changes: list[Change], expected: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    path = write_images(tmp_path, {"train": 3}, size=(9, 7))
    for height, label in enumerate(("cat", "dog"), 7):
        image(f"val/{label}/0.jpg", size=(8, height))(path)
    for change in changes:
        change(path)
    try:
        inspection = inspect_data(
            compose(words_for(path, "dataset.skip_bad=true", *words.split())).config, must_exist=True
        )
    except UserError as error:
        lines = [str(error).replace(f"dataset.path={path}: ", "error: ")]
    else:
        dataset = inspection.config.dataset
        counts = f"{dataset.classes} classes, {dataset.train_samples} + {dataset.val_samples} images"
        lines = [counts, *inspection.notes]
    assert [line.replace(str(path), "") for line in lines] == [*expected]
