"""Find the images of ImageNet-1k in the three files that it comes as; imports no torch.

ILSVRC2012_img_train.tar contains one tar file per class, ILSVRC2012_img_val.tar the images alone, and the development
kit their classes: a number for each image in the order of names, and a table from numbers to WordNet ids.
"""

import io
import itertools
import tarfile
from collections.abc import Sequence

from launcher.counts import count_of
from launcher.data.index import Archive, Images, Piece
from launcher.data.listing import is_image
from launcher.data.sources.arrange import Rows, in_archives
from launcher.data.sources.formats import SourceOptions
from launcher.data.sources.layout import Wanted, below, is_remote, problem, readable, split_of_wanted
from launcher.data.sources.source import Files
from launcher.data.sources.tar import AHEAD, read_members
from launcher.data.workers import Report, in_threads

ARCHIVES = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
_TABLE, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_MOST_BYTES, _AHEAD_OF_CLASSES = 1 << 26, 1 << 16


def list_imagenet(files: Files, parts: Sequence[Wanted], options: SourceOptions, report: Report) -> list[Images]:
    """Find the images of splits in ImageNet's tar files; raises UserError if one is missing or damaged."""
    return [_split(files, split_of_wanted(wanted), report) for wanted in parts]


def are_imagenet(files: Files, parts: Sequence[Wanted]) -> bool:
    """Return whether a folder has ImageNet's tar files of these parts."""
    return "all" not in parts and all(files.holds(below(files.url, ARCHIVES[split_of_wanted(one)])) for one in parts)


def _split(files: Files, split: str, report: Report) -> Images:
    path = files.url
    archive, what = below(path, ARCHIVES[split]), f"listing {split} images"

    def members(start: int = 0, end: int | None = None, ahead: int = AHEAD) -> list[Piece]:
        with files.open(archive, ahead) as file:
            return [*read_members(file, archive, start, end)]

    def of_class(tar: Piece) -> list[tuple[str, Piece]]:
        inside = members(tar.start, tar.start + (tar.size or 0))
        return [(tar.name.removesuffix(".tar"), member) for member in inside]

    if split == "train":
        inner = [member for member in members(ahead=_AHEAD_OF_CLASSES) if member.name.endswith(".tar")]
        images = [*itertools.chain(*in_threads(of_class, inner, report=report, what=what))]
    else:
        classes, val = _val_classes(files, path), sorted(members(), key=lambda member: member.name)
        if len(val) != len(classes):
            message = f"has {count_of(len(val), 'image')}, but {DEVKIT} lists {len(classes):,}; download both again"
            raise problem(archive, message)
        images = [*zip(classes, val, strict=True)]
        report(what, len(val), len(val))
    rows, version = Rows("train" if split == "train" else "val"), files.version(archive) if is_remote(archive) else ""
    for label, member in images:
        if is_image(member.name):
            rows.add(label, f"{label}/{member.name}", (0, member.start, member.size or 0, 0))
    return rows.images(archive, [], in_archives([Archive(archive, version)]))


def _val_classes(files: Files, path: str) -> list[str]:
    """Return the WordNet ids of the validation images in the order of their names."""
    # note: a slow import
    from scipy.io import loadmat

    devkit = below(path, DEVKIT)
    if not files.holds(devkit):
        raise problem(path, f"has no {DEVKIT}, which lists the validation images' classes; add it")
    with files.open(devkit, AHEAD) as opened:
        data = opened.read(_MOST_BYTES)
    with readable(devkit, "download it again"):
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            table, truth = (_content(tar, name) for name in (_TABLE, _TRUTH))
        synsets = loadmat(io.BytesIO(table), squeeze_me=True)["synsets"]
        # note: inner nodes of the tree are groups of classes
        leaves = synsets[synsets["num_children"] == 0]
        names = dict(zip(map(int, leaves["ILSVRC2012_ID"]), map(str, leaves["WNID"]), strict=True))
        return [names[int(line)] for line in truth.split()]


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    """Read a file of the kit, with any name of its top folder."""
    match = next((member for member in itertools.islice(tar, 1000) if member.name.endswith(name)), None)
    file = tar.extractfile(match) if match is not None and match.size <= _MOST_BYTES else None
    if file is None:
        raise ValueError(f"it contains no {name}")
    return file.read()
