"""Readers against those of the formats' own people, on the same files: image by image and label by label."""

import io
import json
import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from launcher.data.decode import decode
from launcher.data.sources.find import list_images, open_source
from launcher.data.sources.formats import NO_COLUMNS, SourceOptions
from launcher.data.sources.reading import read
from launcher.data.workers import quiet
from launcher.errors import UserError

from .downloads import add

# What a reader sees in a file: the text of the label, and the pixels of the image, of each sample.
Samples = list[tuple[str, bytes]]


def image(draw: random.Random, kind: str) -> bytes:
    file = io.BytesIO()
    pixels = np.array([draw.randrange(256) for _ in range(7 * 5 * 3)], np.uint8).reshape(7, 5, 3)
    Image.fromarray(pixels).save(file, {"jpg": "JPEG"}.get(kind, kind.upper()))
    return file.getvalue()


def pixels(data: bytes) -> bytes:
    return decode(data, upright=False).image.tobytes()


def ours(path: Path, **columns: Any) -> Samples | None:
    """Return the samples of a path, or None if it is refused."""
    options = SourceOptions(NO_COLUMNS.__class__(**{**vars(NO_COLUMNS), **columns}), links="follow", labelled="class")
    try:
        source = open_source(str(path), "all", quiet, options)
    except UserError:
        return None
    labels = [source.classes[label] for label in source.labels.tolist()]
    return sorted((label, pixels(read(source.piece(number)))) for number, label in enumerate(labels))


def dotted(name: str, draw: random.Random) -> str:
    return name if draw.random() < 0.7 else name.replace("-", ".")


@pytest.mark.parametrize("seed", range(20))
def test_tar_files_of_samples_as_webdataset(seed: int, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    draw = random.Random(seed)
    made: Samples = []
    in_json, several, odd = draw.random() < 0.4, draw.random() < 0.3, draw.random() < 0.4
    for shard in range(draw.randint(1, 3)):
        with tarfile.open(tmp_path / f"train-{shard:03d}.tar", "w") as tar:
            for number in range(draw.randint(2, 5)):
                key = f"{draw.choice(['', 'sub/', 'v1.0/'])}cam{number % 2}-{number:04d}"
                key = dotted(key, draw) if odd else key
                label = draw.choice(["0", "7", "12", "ant bee"])
                kind = draw.choice(["jpg", "png", "webp"])
                parts = [(kind, image(draw, kind))]
                made.append((label, pixels(parts[0][1])))
                content = json.dumps({"label": label, "url": "x"}) if in_json else label
                parts.append(("json" if in_json else "cls", content.encode()))
                parts += [("txt", b"a caption")] * (draw.random() < 0.5)
                parts += [("seg.png", image(draw, "png"))] * several
                if draw.random() < 0.3:
                    parts.reverse()
                for name, data in parts:
                    add(tar, f"{key}.{name}", data)
    expected: Samples | None = []
    files = sorted(map(str, tmp_path.glob("*.tar")))
    try:
        for sample in wds.WebDataset(files, shardshuffle=False, empty_check=False, handler=wds.reraise_exception):
            label = json.loads(sample["json"])["label"] if in_json else sample["cls"].decode()
            (data,) = [sample[kind] for kind in ("jpg", "png", "webp") if kind in sample]
            expected.append((label, pixels(data)))  # type: ignore[union-attr]
    except (KeyError, ValueError):
        # note: a dot in the name of a sample makes other fields of its parts
        expected = None
    read = ours(tmp_path, **({"label": "label"} if in_json else {}))
    assert read == sorted(expected) if expected is not None else read in (None, sorted(made))


def table(draw: random.Random, names: list[str]) -> dict[str, list[Any]]:
    rows = range(draw.randint(2, 6))
    kinds = [draw.choice(["png", "jpg"]) for _ in rows]
    pairs = zip(rows, kinds, strict=True)
    folders = ["", "test/"]
    photos = [{"bytes": image(draw, one), "path": f"{draw.choice(folders)}{n % 3}.{one}"} for n, one in pairs]
    return {
        "image": photos,
        "thumb": [{"bytes": image(draw, "png"), "path": None} for _ in rows],
        "label": [draw.randrange(len(names)) for _ in rows],
    }


@pytest.mark.parametrize("form", ["parquet", "save_to_disk", "hub"])
@pytest.mark.parametrize("seed", range(6))
def test_tables_as_datasets(seed: int, form: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    draw = random.Random(seed)
    names = draw.choice([["cat", "dog"], [*map(str, range(12))], ["b", "a", "7", "07"], ["n/a", "nan", "\u00e9te"]])
    features = {name: datasets.Image() for name in ("image", "thumb")} | {"label": datasets.ClassLabel(names=names)}
    made = datasets.Dataset.from_dict(table(draw, names), features=datasets.Features(features))
    folder = tmp_path / "set"
    if form == "save_to_disk":
        datasets.DatasetDict({"train": made}).save_to_disk(folder)
        theirs = datasets.load_from_disk(folder)["train"]
    else:
        (folder / "data").mkdir(parents=True)
        file = folder / "data" / "train-00000-of-00001.parquet"
        made.to_parquet(file)
        theirs = datasets.Dataset.from_parquet(str(file), cache_dir=str(tmp_path / "own"))
    if form == "hub":
        (tmp_path / "blobs").mkdir()
        file.rename(tmp_path / "blobs" / "0af3")
        file.symlink_to("../../blobs/0af3")
    for column in ("image", "thumb"):
        rows = (
            (theirs.features["label"].int2str(row["label"]), row[column].convert("RGB").tobytes()) for row in theirs
        )
        assert ours(folder, image=column) == sorted(rows)
    assert open_source(str(folder), "train", quiet).classes == names


def drawn_folder(seed: int, to: Path, deep: str = "deep") -> Path:
    draw = random.Random(seed)
    classes = draw.sample(["ant", "Bee", "10", "9", "2", "cow", "\u00e9te", "a b", "x.y"], draw.randint(2, 5))
    for name in draw.choice([classes, ["1", "2", "10"]]):
        for number in range(draw.randint(1, 3)):
            below = to / name / draw.choice(["", "", deep])
            below.mkdir(parents=True, exist_ok=True)
            (below / f"{number}.{draw.choice(['jpg', 'png', 'JPG'])}").write_bytes(image(draw, "png"))
        (to / name / "notes.txt").touch()
    return to


def test_caches_beside_a_saved_data_set_are_no_images(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": table(random.Random(0), ["cat"])["image"][:2], "label": [0, 1]}
    made = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict(train=made, test=made).save_to_disk(tmp_path / "d")
    made.save_to_disk(tmp_path / "s")
    before = ours(tmp_path / "d"), ours(tmp_path / "s")
    for saved in (datasets.load_from_disk(tmp_path / "d")["train"], datasets.load_from_disk(tmp_path / "s")):
        saved.map(lambda row: {"label": 1 - row["label"]}, features=features)
        saved.filter(lambda row: row["label"])
    assert len([*tmp_path.rglob("cache-*.arrow")]) == 4
    assert (ours(tmp_path / "d"), ours(tmp_path / "s")) == before
    assert len(before[0] or ()) == len(before[1] or ()) == 2
    train, _ = list_images(str(tmp_path / "d"), ("train", "val"), quiet, SourceOptions(), is_prepared=True)
    (one,) = train.dropped.items()
    assert (one[0], one[1].rows) == ("caches of the package datasets", 2)


@pytest.mark.parametrize("form", ["parquet", "save_to_disk"])
def test_each_column_has_the_names_of_its_own_classes(form: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    animals, colours = (datasets.ClassLabel(names=names) for names in (["cat", "dog"], ["red", "blue"]))
    features = {"image": datasets.Image(), "animal": animals, "colour": colours, "all": datasets.Sequence(animals)}
    rows = {"image": table(random.Random(0), ["cat"])["image"][:2], "animal": [0, 1], "colour": [1, 0]}
    made = datasets.Dataset.from_dict(rows | {"all": [[1, 0], [0]]}, features=datasets.Features(features))
    made.to_parquet(tmp_path / "x.parquet") if form == "parquet" else made.save_to_disk(tmp_path / "d")
    path = tmp_path / "x.parquet" if form == "parquet" else tmp_path / "d"
    assert sorted(label for label, _ in ours(path, label=["animal", "colour"]) or ()) == ["cat|blue", "dog|red"]
    assert sorted(label for label, _ in ours(path, label="all") or ()) == ["cat", "dog|cat"]


def test_files_whose_classes_have_other_orders_are_read_by_name(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    photos = table(random.Random(0), ["cat"])["image"][:2]
    for number, names in enumerate([["dog", "cat"], ["cat", "cow"]]):
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
        made = datasets.Dataset.from_dict({"image": photos, "label": [0, 1]}, features=features)
        made.to_parquet(tmp_path / f"train-{number}.parquet")
    source = open_source(str(tmp_path), "train", quiet)
    assert source.classes == ["cat", "cow", "dog"]
    assert sorted(source.classes[label] for label in source.labels) == ["cat", "cat", "cow", "dog"]


def test_names_of_a_list_as_earlier_versions_of_datasets_wrote_them(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = {"info": {"features": {"label": [{"names": ["cat", "dog"], "_type": "ClassLabel"}]}}}
    photos = [{"bytes": image(random.Random(0), "png"), "path": None} for _ in range(2)]
    rows = pyarrow.table({"image": photos, "label": [[1, 0], [0]]})
    rows = rows.replace_schema_metadata({b"huggingface": json.dumps(names).encode()})
    parquet.write_table(rows, tmp_path / "x.parquet")
    assert sorted(label for label, _ in ours(tmp_path / "x.parquet") or ()) == ["cat", "dog|cat"]


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_class_folders_as_torchvision_and_timm(seed: int, links: bool, tmp_path: Path) -> None:
    """With links, as in a checkout of DVC or a subset of ImageNet made of links."""
    from timm.data.readers import create_reader

    folder = drawn_folder(seed, tmp_path / "d" / "train")
    if links:
        folder = linked(folder, tmp_path / "links" / "train")
    # note: timm's class is the last folder
    flat = drawn_folder(seed, tmp_path / "flat" / "train", deep="")
    theirs = ImageFolder(str(folder))
    for samples, classes, path in ((theirs.samples, theirs.classes, folder), (*of_timm(create_reader, flat), flat)):
        expected = sorted((classes[label], pixels(Path(file).read_bytes())) for file, label in samples)
        assert ours(path.parent) == expected


def of_timm(create_reader: Callable[..., Any], folder: Path) -> tuple[list[tuple[str, int]], list[str]]:
    reader = create_reader("", str(folder))
    names = {number: name for name, number in reader.class_to_idx.items()}
    return reader.samples, [names[number] for number in range(len(names))]


def linked(folder: Path, to: Path) -> Path:
    for file in filter(Path.is_file, folder.rglob("*")):
        link = to / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return to


def test_links_of_a_checkout_are_read_or_named_and_loops_end(tmp_path: Path) -> None:
    folder = linked(drawn_folder(0, tmp_path / "store"), tmp_path / "d" / "train")
    with pytest.raises(UserError, match=r"set dataset.links=follow to read them"):
        open_source(str(folder.parent), "train", quiet)
    first = next(folder.iterdir())
    (first / "loop").symlink_to(first)
    shutil.copytree(folder, folder.parent / "val", symlinks=True)
    followed = open_source(str(folder.parent), "train", quiet, SourceOptions(links="follow"))
    assert followed.dropped["names of a broken or looping link, a pipe or a device"].rows == 1
    assert len(followed.names) == len([*filter(Path.is_file, (tmp_path / "store").rglob("*.[jpJ]*"))])
