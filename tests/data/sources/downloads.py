"""Write ImageNet's three files as they are downloaded, with a few images in each, and a folder in other formats."""

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from launcher.data.decode import UnreadableImage
from launcher.data.index import Images
from launcher.data.sources.reading import read_all
from launcher.data.sources.source import Files

# note: not in the order of their names, as in the real table; the last is the parent of the others
SYNSETS = [(1, "n02", 0), (2, "n03", 0), (3, "n01", 0), (4, "n00", 3)]
CLASSES = ["n01", "n02", "n03"]
TRUTH = [2, 1, 3, 3, 2, 1, 1]


def jpeg(seed: int) -> bytes:
    """Return a small image that depends on the seed."""
    random = np.random.default_rng(seed)
    file = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (*random.integers(20, 60, 2), 3), dtype=np.uint8)).save(file, "JPEG")
    return file.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def write_downloads(folder: Path) -> Path:
    """Write the three files; images are not in the order of their names, as in any tar file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for place, name in enumerate(reversed(CLASSES)):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as tar:
                for number in (3, 1, 12, 2):
                    add(tar, f"{name}_{number}.JPEG", jpeg(100 * place + number))
            add(train, f"{name}.tar", inner.getvalue())
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as val:
        for number in reversed(range(len(TRUTH))):
            add(val, f"ILSVRC2012_val_{number + 1:08d}.JPEG", jpeg(1000 + number))
    write_devkit(folder / "ILSVRC2012_devkit_t12.tar.gz")
    return folder


def write_devkit(path: Path) -> None:
    kinds = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("gloss", "O"), ("num_children", "O")]
    synsets = np.array([(number, wnid, "a, b", "what it is", below) for number, wnid, below in SYNSETS], kinds)
    table = io.BytesIO()
    savemat(table, {"synsets": synsets})
    with tarfile.open(path, "w:gz") as tar:
        add(tar, "ILSVRC2012_devkit_t12/data/meta.mat", table.getvalue())
        lines = "".join(f"{number}\n" for number in TRUTH)
        add(tar, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", lines.encode())


def report(what: str, done: int, total: int) -> None:
    assert done <= total


def contents(source: Images) -> dict[str, tuple[int, bytes | UnreadableImage]]:
    numbers = range(len(source))
    read = read_all(Files(source.root), [source.piece(number) for number in numbers])
    return dict(zip(source.names, zip(source.labels.tolist(), read, strict=True), strict=True))


Images = list[tuple[str, str, str, bytes]]


def listed(folder: Path, split: str) -> Images:
    """Return split, class, name and bytes of a folder's images."""
    paths = sorted(folder.glob(f"{split}/*/*.jpg"))
    return [(split, path.parent.name, path.name, path.read_bytes()) for path in paths]


def shards(images: Images) -> Iterator[tuple[int, Images]]:
    """Divide images into three shards, each of both classes."""
    return ((number, images[number::3]) for number in range(3))


def webdataset(folder: Path, to: Path) -> Path:
    for split in ("train", "val"):
        for number, images in shards(listed(folder, split)):
            with tarfile.open(to / f"{split}-{number:06d}.tar", "w") as tar:
                for _, label, name, data in images:
                    add(tar, f"{label}/{name}", data)
                    add(tar, f"{label}/{Path(name).stem}.cls", label.encode())
    return to


def in_memory(folder: Path) -> str:
    """Write the files of a folder into a bucket in memory, and return its URL."""
    system = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            system.pipe_file(f"/bucket/{folder.name}/{path.relative_to(folder)}", path.read_bytes())
    return f"memory://bucket/{folder.name}"


def tar_of_folders(folder: Path, to: Path) -> Path:
    with tarfile.open(to / "pets.tar", "w") as tar:
        for split in ("train", "val"):
            tar.add(folder / split, f"pets/{split}")
    return to / "pets.tar"


def zip_of_folders(folder: Path, to: Path) -> Path:
    with zipfile.ZipFile(to / "pets.zip", "w") as file:
        for number, (split, label, name, data) in enumerate(listed(folder, "train") + listed(folder, "val")):
            kind = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
            file.writestr(f"pets/{split}/{label}/{name}", data, kind)
        file.writestr("__MACOSX/pets/train/cat/0.jpg", b"")
    return to / "pets.zip"


def split_column(folder: Path, to: Path) -> Path:
    with (to / "pets.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["label", "path", "split"])
        rows.writeheader()
        for split, label, name, _ in listed(folder, "train") + listed(folder, "val"):
            rows.writerow({"label": label, "path": folder / split / label / name, "split": split})
    return to / "pets.csv"


def tables(folder: Path, to: Path) -> Path:
    for split in ("train", "val"):
        (to / split).symlink_to(folder / split)
        rows = [{"file_name": f"{split}/{label}/{name}", "class": label} for _, label, name, _ in listed(folder, split)]
        (to / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return to / "train.jsonl"


def table_of(images: Images):  # type: ignore[no-untyped-def]
    """Return an Arrow table as Hugging Face's `datasets` writes it."""
    pyarrow = pytest.importorskip("pyarrow")
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", kind), ("label", pyarrow.int64())], metadata)
    rows = [
        {"image": {"bytes": data, "path": name}, "label": ["cat", "dog"].index(label)}
        for _, label, name, data in images
    ]
    return pyarrow.Table.from_pylist(rows, schema)


def parquet(folder: Path, to: Path) -> Path:
    parquet = pytest.importorskip("pyarrow.parquet")
    (to / "data").mkdir()
    for split, file in (("train", "train"), ("val", "validation")):
        for number, images in shards(listed(folder, split)):
            path = to / "data" / f"{file}-{number:05d}-of-00003.parquet"
            parquet.write_table(table_of(images), path, row_group_size=4)
    return to


def arrow(folder: Path, to: Path) -> Path:
    ipc = pytest.importorskip("pyarrow.ipc")
    for split in ("train", "val"):
        for number, images in shards(listed(folder, split)):
            table = table_of(images)
            with ipc.new_stream(str(to / f"pets-{split}-{number:05d}.arrow"), table.schema) as stream:
                stream.write_table(table, max_chunksize=5)
    return to
