"""ImageNet-1k in the three files that are downloaded, none of them unpacked; imports no torch.

ILSVRC2012_img_train.tar holds a tar file a class, ILSVRC2012_img_val.tar the pictures alone. Whose classes are in the
development kit: a line of numbers for each picture in the order of names, and a table from numbers to WordNet ids.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from concurrent.futures import ThreadPoolExecutor

from launcher.data.decode import NoPicture
from launcher.data.folder import problem
from launcher.data.sources.source import Piece, Report, Source, Storage, below
from launcher.data.sources.tar import AHEAD, Member, members, tar_source

ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_TABLE, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_MOST_BYTES = 1 << 26
# note: of another machine's disk or a bucket, one reader alone would wait most of the time
_READERS = 16
_AHEAD_OF_CLASSES = 1 << 16


def imagenet_source(storage: Storage, path: str, split: str, report: Report) -> Source:
    """The pictures of a split whose tar file lies in a folder.

    Raises:
        UserError: a file is missing or damaged.
    """
    archive = below(path, ARCHIVES[split])
    found = _train(storage, archive, report) if split == "train" else _val(storage, path, archive, report)
    return tar_source(storage, archive, split, found)


def _train(storage: Storage, archive: str, report: Report) -> list[tuple[str, Member]]:
    with storage.open(archive, _AHEAD_OF_CLASSES) as file:
        inner = [member for member in members(file, archive) if member.name.endswith(".tar")]

    def pictures(tar: Member) -> list[tuple[str, Member]]:
        with storage.open(archive, AHEAD) as file:
            inside = members(file, archive, tar.start, tar.start + tar.size)
            return [(tar.name.removesuffix(".tar"), member) for member in inside]

    found: list[tuple[str, Member]] = []
    with ThreadPoolExecutor(_READERS) as pool:
        try:
            for number, part in enumerate(pool.map(pictures, inner)):
                found += part
                report("list of train pictures", number + 1, len(inner))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return found


def _val(storage: Storage, path: str, archive: str, report: Report) -> list[tuple[str, Member]]:
    classes = _val_classes(storage, path)
    with storage.open(archive, AHEAD) as file:
        found = sorted(members(file, archive), key=lambda member: member.name)
    if len(found) != len(classes):
        message = f"holds {len(found):,} pictures, {DEVKIT} the classes of {len(classes):,}; download them again"
        raise problem(archive, message)
    report("list of val pictures", len(found), len(found))
    return list(zip(classes, found, strict=True))


def _val_classes(storage: Storage, path: str) -> list[str]:
    """The WordNet ids of the validation pictures in the order of their names."""
    # note: takes a while, and is needed here alone
    from scipy.io import loadmat

    devkit = below(path, DEVKIT)
    if not storage.holds(devkit):
        raise problem(path, f"holds no {DEVKIT}, which says of what class the validation pictures are; add it")
    (data,) = storage.read([Piece(DEVKIT, devkit)])
    try:
        if isinstance(data, NoPicture):
            raise ValueError(str(data))
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            table, truth = (_content(tar, name) for name in (_TABLE, _TRUTH))
        synsets = loadmat(io.BytesIO(table), squeeze_me=True)["synsets"]
        # note: others of the tree's nodes stand for groups of classes
        leaves = synsets[synsets["num_children"] == 0]
        names = dict(zip(map(int, leaves["ILSVRC2012_ID"]), map(str, leaves["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]
    # note: a damaged file fails with whatever error its readers happen to meet
    except Exception as error:
        raise problem(devkit, f"cannot be read ({type(error).__name__}: {error}); download it again") from None


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    """A file of the kit, whatever its topmost folder is called."""
    found = next((member for member in itertools.islice(tar, 1000) if member.name.endswith(name)), None)
    file = tar.extractfile(found) if found is not None and found.size <= _MOST_BYTES else None
    if file is None:
        raise ValueError(f"it holds no {name}")
    return file.read()
