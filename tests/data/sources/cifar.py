"""CIFAR's files with random images, as its page has them."""

import pickle
import tarfile
from pathlib import Path

import numpy as np

FOLDERS = {
    (10, "binary"): "cifar-10-batches-bin",
    (10, "python"): "cifar-10-batches-py",
    (100, "binary"): "cifar-100-binary",
    (100, "python"): "cifar-100-python",
}


def class_names(classes: int) -> list[str]:
    """Return names whose order is not that of the alphabet."""
    return [f"{'zebra' if number % 2 else 'ant'}_{number}" for number in range(classes)]


def write_cifar(root: Path, classes: int, form: str, rows: int = 40, protocol: int = 2, seed: int = 0) -> Path:
    """Write a set of `rows` training images a file and half as many test images below `root`; return its folder."""
    folder = root / FOLDERS[classes, form]
    folder.mkdir(parents=True)
    batches = (
        [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"] if classes == 10 else ["train", "test"]
    )
    random = np.random.default_rng(seed)
    for name in batches:
        count = rows // 2 if name.startswith("test") else rows
        pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
        fine, coarse = random.permutation(np.arange(count) % classes), random.integers(0, 20, count)
        if form == "binary":
            columns = [fine[:, None], pixels] if classes == 10 else [coarse[:, None], fine[:, None], pixels]
            (folder / f"{name}.bin").write_bytes(np.concatenate(columns, axis=1).astype(np.uint8).tobytes())
            continue
        labels = {"labels": fine.tolist()} if classes == 10 else {"fine_labels": fine.tolist(), "coarse_labels": []}
        (folder / name).write_bytes(pickle.dumps({"batch_label": b"1", "data": pixels, **labels}, protocol))
    names = class_names(classes)
    if form == "binary":
        kinds = ["batches.meta.txt"] if classes == 10 else ["fine_label_names.txt", "coarse_label_names.txt"]
        for one in kinds:
            (folder / one).write_text("\n".join(names) + "\n\n")
    else:
        meta, key = ("batches.meta", "label_names") if classes == 10 else ("meta", "fine_label_names")
        (folder / meta).write_bytes(pickle.dumps({key: names}, protocol))
    return folder


def packed(folder: Path, to: Path) -> Path:
    """Write the .tar.gz of a folder, as it is downloaded, into `to`; return its path."""
    to.mkdir(exist_ok=True)
    classes, form = next(key for key, name in FOLDERS.items() if name == folder.name)
    path = to / f"cifar-{classes}-{form}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(folder, folder.name)
    return path
