"""Keys of images and loaders at values other than their defaults, against formulas and torchvision."""

import io
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import v2 as T

from launcher.config.compose import compose
from launcher.data.ffcv.beton import open_beton
from launcher.data.inspection import inspect_data
from launcher.data.loading import Loaders
from launcher.data.sampling import buffered_order, epoch_order, train_requests
from launcher.data.text.prepare import tokens_in
from launcher.data.text.shards import Stream

from .conftest import make_loaders, photographs, write_files
from .sources.downloads import in_memory, webdataset

PILLOW = ("dataloader.decoder=pillow", "dataloader.workers=0", "dataset.native_size=224")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("photos"))


def images_of(folder: Path, split: str) -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sorted((folder / split).glob("*/*.png"))]


def test_evaluation_images_are_resized_and_cut_as_torchvisions(photos: Path) -> None:
    words = ("image.eval_resize=48", "image.eval_size=40", "image.eval_interpolation=bicubic")
    loaders = make_loaders(photos, *PILLOW, *words)
    got = np.concatenate([images.permute(0, 2, 3, 1).numpy() for images, _, _ in loaders.evaluate])
    loaders.close()
    expected = T.Compose([T.Resize(48, InterpolationMode.BICUBIC), T.CenterCrop(40)])
    assert np.array_equal(got, np.stack([np.asarray(expected(image)) for image in images_of(photos, "val")]))


@pytest.mark.parametrize("filter_name", ["bicubic", "bilinear"])
def test_crops_have_the_area_the_shape_and_the_filter_of_the_config(photos: Path, filter_name: str) -> None:
    """Each training crop is one of all boxes of a quarter of the area that are twice as wide as high."""
    words = ("image.scale=[0.25,0.25]", "image.ratio=[2,2]", f"image.interpolation={filter_name}", "image.flip=0")
    loaders = make_loaders(photos, *PILLOW, *words, "image.train_size=24")
    images, _, indices = next(iter(loaders.train.epoch(0)))
    loaders.close()
    wholes, resample = images_of(photos, "train"), Image.Resampling[filter_name.upper()]
    for got, index in zip(images.permute(0, 2, 3, 1).numpy().astype(int)[:3], indices[:3], strict=True):
        whole = wholes[index]
        width, height = (round((whole.width * whole.height / 4 * of) ** 0.5) for of in (2, 1 / 2))
        places = itertools.product(range(whole.width - width + 1), range(whole.height - height + 1))
        crops = (whole.crop((x, y, x + width, y + height)).resize((24, 24), resample) for x, y in places)
        # note: levels by which crops differ from those of an installed Pillow, in docs/recipes.md
        assert min(np.abs(got - np.asarray(crop)).max() for crop in crops) <= 2


def requested(loaders: Loaders) -> int:
    """Return how many batches a loader has started when it gives the first one."""
    count = 0

    def counted(requests: Iterable[Any]) -> Iterator[Any]:
        nonlocal count
        for request in requests:
            count += 1
            yield request

    train = loaders.train
    batches = train.reader.batches(counted(train_requests(train.plan, train.shard, train.reader.labels, 0, 0, None)))
    next(iter(batches))
    loaders.close()
    return count


@pytest.mark.parametrize(("workers", "prefetch"), [(2, 1), (2, 3), (1, 4)])
def test_each_worker_is_ahead_by_the_batches_of_the_config(workers: int, prefetch: int, image_folder: Path) -> None:
    words = ("batch_size=2", f"dataloader.workers={workers}", f"dataloader.prefetch={prefetch}")
    assert requested(make_loaders(image_folder, *words)) == workers * prefetch + 1
    assert requested(make_loaders(image_folder, "dataloader=ffcv", *words)) == prefetch + 1


def test_a_loader_of_masks_has_the_workers_and_batches_ahead_of_the_config(tmp_path: Path) -> None:
    for number in range(20):
        for name in ("images", "masks"):
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new("L" if name == "masks" else "RGB", (9, 9)).save(tmp_path / name / f"{number}.png")
    words = ["task=segmentation", "model=unet", "task.classes=[a,b]", "dataset.val_split=0.2", "dataloader=masks"]
    loaders = make_loaders(tmp_path, *words, "batch_size=1", "dataloader.workers=3", "dataloader.prefetch=3")
    assert requested(loaders) == 3 * 3 + 1


def test_the_order_of_copied_archives_is_that_of_the_formula(image_folder: Path, tmp_path: Path) -> None:
    bucket = in_memory(webdataset(image_folder, tmp_path))
    loaders = make_loaders(bucket, "dataloader.workers=0", "dataloader.shuffle_buffer=9")  # type: ignore[arg-type]
    of_image, _ = loaders.train.reader.archives or (np.empty(0), 0)
    read = np.concatenate([indices for _, _, indices in loaders.train.epoch(0)])
    loaders.close()
    assert read.tolist() == buffered_order(42, 0, of_image, 9)[:40].tolist()


def test_jpegs_have_the_quality_of_the_config(image_folder: Path, tmp_path: Path) -> None:
    words = ["dataloader.files.jpeg_share=1.0", "dataloader.files.quality=55"]
    train, _ = write_files(image_folder, *words, f"dataloader.folder={tmp_path}")
    content, file = train.read_bytes(), open_beton(train)
    _, coded = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 55])
    tables = Image.open(io.BytesIO(coded.tobytes())).quantization  # type: ignore[attr-defined]
    for piece in file.pieces:
        data = content[piece["place"] : piece["place"] + piece["size"]]
        with Image.open(io.BytesIO(data)) as image:
            assert image.quantization == tables  # type: ignore[attr-defined]


def test_validation_images_are_those_of_the_file_of_the_config(image_folder: Path, tmp_path: Path) -> None:
    train, _ = write_files(image_folder, f"dataloader.folder={tmp_path}")
    words = ["dataloader=ffcv", "dataloader.workers=1", f"dataloader.train={train}", f"dataloader.val={train}"]
    loaders = make_loaders(image_folder, *words)
    assert sum(len(images) for images, _, _ in loaders.evaluate) == 42
    loaders.close()


TABLES = ["dataset=image_folder", "dataset.native_size=32", "batch_size=2", "dataloader.workers=0"]


def test_columns_of_splits_and_separators_of_labels_are_those_of_the_config(tmp_path: Path) -> None:
    rows = ["image,label,split,part"]
    for number in range(8):
        Image.new("RGB", (40, 32), (9 * number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,a|b;{'bc'[number % 2]},train,{'train' if number < 6 else 'val'}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    words = ["task=multilabel", "dataset.columns.split=part", "dataset.columns.separator=;"]
    config = compose([*TABLES, f"dataset.path={tmp_path / 'table.csv'}", *words]).config
    train, val = inspect_data(config, must_exist=True).splits
    assert (len(train), len(val)) == (6, 2)
    assert train.classes == ["a|b", "b", "c"]
    assert sorted(train.labels.tolist()) == [[1, 0, 1]] * 3 + [[1, 1, 0]] * 3


@pytest.mark.parametrize("batches", [1, 3])
def test_synthetic_batches_repeat_after_their_number(batches: int) -> None:
    words = ["dataset=imagenet", "dataset.train_samples=16", "dataset.classes=4", "image.train_size=8"]
    loaders = make_loaders(Path(), *words, "dataloader=synthetic", f"dataloader.batches={batches}", "batch_size=2")
    images = [batch[0].numpy().tobytes() for batch in loaders.train.epoch(0)]
    loaders.close()
    assert len(images) == 8
    assert images == [images[step % batches] for step in range(8)]
    assert len(set(images)) == batches


def test_the_seed_gives_the_order_and_batches_of_evaluation_have_the_size_of_the_config(image_folder: Path) -> None:
    loaders = make_loaders(image_folder, "dataloader.workers=0", "seed=7", "eval_batch_size=6")
    read = np.concatenate([indices for _, _, indices in loaders.train.epoch(0)])
    sizes = [len(images) for images, _, _ in loaders.evaluate]
    loaders.close()
    assert read.tolist() == epoch_order(7, 0, 42)[:40].tolist()
    assert sizes == [6, 6, 2]


def test_text_is_read_from_the_column_into_the_folder_of_the_config(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}.jsonl").write_text('{"text": "long", "summary": "short"}\n')
    words = ["task=language", "dataloader=tokens", "dataset=text", "model=gpt", f"dataset.path={tmp_path}"]
    words += [f"dataloader.folder={tmp_path}/tokens", "dataset.columns.text=summary"]
    config = compose(words).config
    tokens = tokens_in(config)
    assert tokens.folder == tmp_path / "tokens"
    whole = Stream([tokens.folder / name for name in tokens.files["train"]], 257)
    assert bytes(whole.read(0, len(whole)).tolist()[:-1]) == b"short"
