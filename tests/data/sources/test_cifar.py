"""CIFAR-10 and CIFAR-100 from their public files, with torchvision's readers as the oracle."""

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from launcher.data.decode import decode
from launcher.data.sources.cifar import cifar_path
from launcher.data.sources.find import open_source
from launcher.data.sources.layout import Wanted
from launcher.data.sources.reading import read
from launcher.data.workers import quiet
from launcher.errors import UserError

from ..conftest import make_loaders, stream
from .archives import inspected
from .cifar import class_names, packed, write_cifar


def ours(path: Path, wanted: Wanted) -> list[tuple[int, bytes]]:
    """Return label and pixels of each image, in the order of the files' rows."""
    source = open_source(str(path), wanted, quiet)
    assert source.classes == class_names(len(source.classes))
    pieces = [source.piece(number) for number in range(len(source.files))]
    images = [decode(read(piece), upright=True).image.tobytes() for piece in pieces]
    rows = zip([Path(piece.name).name for piece in pieces], source.labels.tolist(), images, strict=True)
    return [(label, image) for _, label, image in sorted(rows)]


def theirs(root: Path, classes: int, monkeypatch: pytest.MonkeyPatch, *, train: bool) -> list[tuple[int, bytes]]:
    """Return what torchvision reads of the Python version; its checksums are those of the real files."""
    reader = CIFAR10 if classes == 10 else CIFAR100
    for name in ("train_list", "test_list"):
        monkeypatch.setattr(reader, name, [[file, None] for file, _ in getattr(reader, name)])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": None})
    data = reader(str(root), train=train)
    assert data.classes == class_names(classes)
    return [(label, image.tobytes()) for image, label in data]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("classes", [10, 100])
def test_all_forms_have_the_images_of_torchvision(
    classes: int, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = write_cifar(tmp_path / "p", classes, "python", 240, protocol)
    binary = write_cifar(tmp_path / "b", classes, "binary", 240)
    for wanted, train in (("train", True), ("val", False), ("all", True)):
        expected = theirs(tmp_path / "p", classes, monkeypatch, train=train)
        paths = [python, tmp_path / "p", binary, tmp_path / "b", packed(python, tmp_path / "gz")]
        for path in [*paths, packed(binary, tmp_path / "gz2"), tmp_path / "gz2"]:
            assert ours(path, wanted) == expected, path  # type: ignore[arg-type]


def test_a_pickle_cannot_call_code(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "called"),))

    folder = write_cifar(tmp_path, 10, "python")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Code(), b"labels": [0]}, 2))
    with pytest.raises(UserError, match=r"would import posix.mkdir.*download it again"):
        open_source(str(folder), "train", quiet)
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("form", ["binary", "python"])
def test_damaged_files_are_refused_in_one_line(form: str, tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, 10, form)
    first = folder / ("data_batch_1.bin" if form == "binary" else "data_batch_1")
    whole = first.read_bytes()
    first.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"cannot be read.*download it again"):
        open_source(str(folder), "train", quiet)
    first.unlink()
    with pytest.raises(UserError, match=rf"has no {first.name}; download it again"):
        open_source(str(folder), "train", quiet)


def test_files_with_other_numbers_of_labels_and_images_are_refused(tmp_path: Path) -> None:
    """Without the check, labels would move to other images where the sum over all files is right."""
    folder = write_cifar(tmp_path, 10, "python")
    for number, change in ((1, -3), (2, 3)):
        file = folder / f"data_batch_{number}"
        values = pickle.loads(file.read_bytes())
        values["labels"] = values["labels"][:change] if change < 0 else [*values["labels"], *[0] * change]
        file.write_bytes(pickle.dumps(values, 2))
    with pytest.raises(UserError, match=r"a file has 37 labels and 40 images.*download it again"):
        open_source(str(folder), "train", quiet)
    binary = write_cifar(tmp_path / "b", 10, "binary")
    (binary / "data_batch_4.bin").write_bytes(b"")
    with pytest.raises(UserError, match=r"a file has 0 labels and 0 images.*download it again"):
        open_source(str(binary), "train", quiet)


def test_an_archive_with_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    archive = packed(write_cifar(tmp_path, 10, "binary"), tmp_path / "gz")
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot be read.*download it again"):
        open_source(str(archive), "train", quiet)


def test_a_label_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, 10, "binary")
    (folder / "batches.meta.txt").write_text("ant\nbee\n")
    with pytest.raises(UserError, match=r"labels without a name in batches.meta.txt"):
        open_source(str(folder), "train", quiet)


def test_two_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    for classes in (10, 100):
        write_cifar(tmp_path, classes, "python", 10)
    with pytest.raises(UserError, match="cifar-100-python; set one of them"):
        cifar_path(str(tmp_path))


@pytest.mark.parametrize("classes", [10, 100])
def test_a_config_has_its_counts(classes: int, tmp_path: Path) -> None:
    folder = write_cifar(tmp_path, classes, "binary", 200)
    config = inspected(folder, "dataset=cifar", f"dataset.classes={classes}").config
    assert (config.dataset.train_samples, config.dataset.val_samples) == ({10: 1000, 100: 200}[classes], 100)
    wrong = 110 - classes
    with pytest.raises(UserError, match=f"set dataset.classes={classes}"):
        inspected(folder, "dataset=cifar", f"dataset.classes={wrong}")


def test_an_epoch_shuffles_all_images(tmp_path: Path) -> None:
    """The one archive of a split is shuffled whole, so a small buffer changes the order, not how far images move."""
    folder = write_cifar(tmp_path, 10, "binary", 200)
    batches = stream(make_loaders(folder, "dataset=cifar", "dataloader.workers=0", "dataloader.shuffle_buffer=1"), (0,))
    places = np.concatenate([indices for _, _, indices in batches])
    assert len({*places.tolist()}) == 1000
    assert abs(np.corrcoef(places, np.arange(1000))[0, 1]) < 0.15


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
        shown = {np.asarray(Image.open(io.BytesIO(read(source.piece(n))))).tobytes() for n in range(len(source.files))}
        assert shown == {one.tobytes() for one in made[split]}
