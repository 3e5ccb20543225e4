"""CIFAR's files with random images, as its page has them."""

import pickle
import tarfile
from pathlib import Path

import numpy as np

FOLDERS = {10: "cifar-10-batches-py", 100: "cifar-100-python"}


def class_names(classes: int) -> list[str]:
    """Return names in the order of the alphabet, as CIFAR's are."""
    return [f"{'ant' if number < classes // 2 else 'zebra'}_{number:03d}" for number in range(classes)]


def write_cifar(root: Path, classes: int, rows: int = 40) -> Path:
    """Write a set of `rows` training images a file and half as many test images below `root`; return its folder."""
    folder = root / FOLDERS[classes]
    folder.mkdir(parents=True)
    batches = (
        [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    )
    random = np.random.default_rng(0)
    for name in batches:
        count = rows // 2 if name.startswith("test") else rows
        pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        labels = random.permutation(np.arange(count) % classes).tolist()
        values = {"labels": labels} if classes == 10 else {"fine_labels": labels, "coarse_labels": []}
        (folder / name).write_bytes(pickle.dumps({"batch_label": b"1", "data": pixels, **values}, 2))
    meta, key = ("batches.meta", "label_names") if classes == 10 else ("meta", "fine_label_names")
    (folder / meta).write_bytes(pickle.dumps({key: class_names(classes)}, 2))
    return folder


def packed(folder: Path, to: Path) -> Path:
    """Write the .tar.gz of a folder, as it is downloaded, into `to`; return its path."""
    to.mkdir(exist_ok=True)
    path = to / f"{folder.name.removesuffix('-python').removesuffix('-batches-py')}-python.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    return path
