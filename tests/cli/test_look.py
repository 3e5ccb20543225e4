"""`train look`: its page of an image folder, of FFCV files and of the built-in images."""

import os
from pathlib import Path

from tests.commands import output_of, refused
from tests.html import Page
from tests.images import write_images

EVIL = '<script>alert("x")</script>'
BROKEN = os.fsdecode(b"b\xff")
WORDS = ["recipe=small", "launch=cpu", "batch_size=4", "dataset.native_size=32"]


def test_the_page_of_a_folder_escapes_names_and_loads_nothing(tmp_path: Path) -> None:
    classes = [EVIL.replace("/", ""), BROKEN, "cat"]
    root = write_images(tmp_path / "pets", {"train": 6, "val": 2}, classes, size=(40, 50))
    (root / "train" / "cat" / "0.jpg").write_bytes(b"no image")
    (root / "train" / "cat" / "1.jpg").write_bytes((root / "val" / "cat" / "1.jpg").read_bytes())
    path = tmp_path / "page.html"
    output = output_of("look", *WORDS, f"dataset.path={root}", "algorithms=[mixup, randaugment]", "-o", str(path))
    assert output.startswith(f"{path}: ")
    assert output.endswith("images of 3 classes at 3 steps\n")
    page = Page(path)
    assert "script" not in page.tags
    assert page.tags.count("img") == len(page.sources) >= 3 * 5 * 2
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    text = "\n".join(page.texts)
    for expected in (classes[0], r"b\udcff", "1.jpg", "randaugment", "all together", "1 of these cannot be decoded"):
        assert expected in text, expected
    assert "1 of 6 validation images is a training image too" in text


def test_only_a_page_is_replaced(tmp_path: Path) -> None:
    shapes = ["recipe=none", "dataset=shapes", "dataset.train_samples=40", "dataset.val_samples=10", *WORDS[1:]]
    shapes += ["model=resnet18"]
    (path := tmp_path / "look.html").write_text("<p>my own</p>")
    assert "exists and is no output of this version of train" in refused("look", *shapes, "-o", str(path))
    assert path.read_text() == "<p>my own</p>"
    path.unlink()
    for _ in range(2):
        assert "10 classes" in output_of("look", *shapes, "-o", str(path))
    assert "must end in .html" in refused("look", *shapes, "-o", str(tmp_path / "a.png"))
    assert "create it first" in refused("look", *shapes, "-o", str(tmp_path / "missing" / "a.html"))
    assert "noise instead of images" in refused("look", "dataloader=synthetic", *shapes, "-o", str(path))


def test_ffcv_files_show_the_same_samples_as_their_images(tmp_path: Path) -> None:
    root = write_images(tmp_path / "pets", {"train": 6, "val": 2}, size=(40, 50))
    words = [*WORDS, f"dataset.path={root}", "algorithms=[mixup]", "algorithms.mixup.probability=1.0"]
    output_of("prepare", "dataset=image_folder", f"dataset.path={root}")
    pages = {}
    for loader in ("torchvision", "ffcv"):
        output_of("look", *words, f"dataloader={loader}", "-o", str(tmp_path / f"{loader}.html"))
        pages[loader] = Page(tmp_path / f"{loader}.html")
    assert pages["ffcv"].tags.count("img") == pages["torchvision"].tags.count("img")
    targets = [[text for text in page.texts if text.startswith("target")] for page in pages.values()]
    assert targets[0] == targets[1] != []


def test_of_many_classes_some_are_drawn(tmp_path: Path) -> None:
    root = write_images(tmp_path / "many", {"train": 1, "val": 1}, [f"class{n}" for n in range(30)], size=(8, 8))
    output = output_of("look", *WORDS, f"dataset.path={root}", "-o", str(tmp_path / "a.html"))
    assert "images of 20 classes at 3 steps" in output
    assert any("20 of 30 classes, drawn by seed=" in text for text in Page(tmp_path / "a.html").texts)
