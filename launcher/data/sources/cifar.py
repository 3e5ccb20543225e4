"""CIFAR-10 and CIFAR-100 as downloaded (the Python version), copied once to a tar file of class folders by torchvision.

torchvision compares the checksums of the files (cs.toronto.edu/~kriz/cifar.html) before it unpickles them, so the
copy is the same on all machines.
"""

import io
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launcher import paths
from launcher.data.sources.layout import is_remote, problem, readable
from launcher.errors import first_few
from launcher.files import atomic

# By torchvision's name: the folder of files, and the archive of it.
_FORMS = {
    "CIFAR10": ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "CIFAR100": ("cifar-100-python", "cifar-100-python.tar.gz"),
}
_HEAD = b"P6 32 32 255\n"


def as_class_folders(path: str) -> str:
    """Return the tar file of class folders of CIFAR's files, if they are at or in a path, else the path itself.

    Raises UserError if it holds several, or they are not those that were published.
    """
    if is_remote(path):
        return path
    places = {
        place: name
        for name, forms in _FORMS.items()
        for place in (Path(path), *(Path(path, form) for form in forms))
        if place.name in forms and place.exists()
    }
    if len({*places.values()}) > 1:
        raise problem(path, f"holds {first_few([str(place) for place in places])}; set one of them")
    for source, name in places.items():
        target = paths.cache() / f"{name}.tar"
        if not target.is_file():
            with readable(str(source), "download it again"):
                _write(target, name, source)
        return str(target)
    return path


def _write(target: Path, name: str, source: Path) -> None:
    from torchvision import datasets  # note: a slow import

    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as unpacked, atomic.writing(target) as partial:
        root: Path | str = source.parent
        if source.is_file():
            root = unpacked
            with tarfile.open(source) as archive:
                archive.extractall(root, filter="data")
        with tarfile.open(partial, "w") as tar:
            for split in ("train", "val"):
                _add(tar, split, getattr(datasets, name)(root, train=split == "train"))


def _add(tar: tarfile.TarFile, split: str, data: Any) -> None:
    for number, (pixels, label) in enumerate(zip(data.data, data.targets, strict=True)):
        image = _HEAD + pixels.tobytes()
        entry = tarfile.TarInfo(f"{split}/{data.classes[label]}/{number:05d}.ppm")
        entry.size = len(image)
        tar.addfile(entry, io.BytesIO(image))
