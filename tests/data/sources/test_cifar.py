"""CIFAR-10 and CIFAR-100 from their public files, with torchvision's readers as the oracle."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from launcher import paths
from launcher.data.decode import decode
from launcher.data.sources.find import open_source
from launcher.data.sources.layout import Wanted
from launcher.data.sources.reading import read
from launcher.data.workers import quiet
from launcher.errors import UserError

from .archives import inspected
from .cifar import class_names, packed, write_cifar

SETS = {10: CIFAR10, 100: CIFAR100}


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept images of other checksums than those that were published."""
    for kind in SETS.values():
        for name in ("train_list", "test_list"):
            monkeypatch.setattr(kind, name, [[file, None] for file, _ in getattr(kind, name)])
        monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": None})


def ours(path: Path, wanted: Wanted) -> list[tuple[int, bytes]]:
    """Return label and pixels of each image, in the order of the files' rows."""
    source = open_source(str(path), wanted, quiet)
    assert source.classes == class_names(len(source.classes))
    pieces = source.pieces()
    images = [decode(read(piece), upright=True).image.tobytes() for piece in pieces]
    rows = zip([Path(piece.name).name for piece in pieces], source.labels.tolist(), images, strict=True)
    return [(label, image) for _, label, image in sorted(rows)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("place", ["folder", "parent", "archive", "its folder"])
@pytest.mark.parametrize("classes", [10, 100])
def test_every_place_has_the_images_of_torchvision(classes: int, place: str, tmp_path: Path) -> None:
    folder = write_cifar(tmp_path / "files", classes, 240)
    archive = packed(folder, tmp_path / "gz")
    path = {"folder": folder, "parent": folder.parent, "archive": archive, "its folder": archive.parent}[place]
    for wanted, is_train in (("train", True), ("val", False)):
        data = SETS[classes](str(folder.parent), train=is_train)
        assert ours(path, wanted) == [(label, image.tobytes()) for image, label in data]  # type: ignore[arg-type]


def test_other_files_than_the_published_ones_are_refused_before_they_are_read(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "called"),))

    folder = write_cifar(tmp_path, 10)
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Code(), b"labels": [0]}, 2))
    for path in (folder, packed(folder, tmp_path / "gz")):
        with pytest.raises(UserError, match=r"cannot be read \(RuntimeError: .*corrupted.*download it again"):
            open_source(str(path), "train", quiet)
    assert not (tmp_path / "called").exists()
    assert not [*paths.cache().glob("CIFAR*")]


def test_two_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for classes in SETS:
        write_cifar(tmp_path, classes, 10)
    with pytest.raises(UserError, match="cifar-100-python; set one of them"):
        open_source(str(tmp_path), "train", quiet)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("classes", [10, 100])
def test_a_config_has_its_counts(classes: int, tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, classes, 200)
    config = inspected(folder, "dataset=cifar", f"dataset.classes={classes}").config
    assert (config.dataset.train_samples, config.dataset.val_samples) == ({10: 1000, 100: 200}[classes], 100)
    with pytest.raises(UserError, match=f"set dataset.classes={classes}"):
        inspected(folder, "dataset=cifar", f"dataset.classes={110 - classes}")


def test_the_hub_has_it_as_parquet(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    random, names = np.random.default_rng(0), class_names(10)
    made = {}
    for split, rows in (("train", 40), ("test", 20)):
        made[split] = random.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        table = {"img": [Image.fromarray(one) for one in made[split]], "label": [n % 10 for n in range(rows)]}
        features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=names)})
        folder = tmp_path / "plain_text"
        folder.mkdir(exist_ok=True)
        datasets.Dataset.from_dict(table, features=features).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    for split, wanted in (("train", "train"), ("test", "val")):
        source = open_source(str(tmp_path / "plain_text"), wanted, quiet)  # type: ignore[arg-type]
        assert source.classes == names
        shown = {np.asarray(Image.open(io.BytesIO(read(source.piece(n))))).tobytes() for n in range(len(source))}
        assert shown == {one.tobytes() for one in made[split]}
