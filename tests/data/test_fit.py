"""Images that are not square, whole or cropped, against torchvision's and timm's; the same in every reader."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as T
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import create_transform

from launcher.config.compose import compose
from launcher.data.batch import START
from launcher.data.crops import Crops, centre_boxes, centre_cut, resize_by_pillow
from launcher.data.ffcv.dataset import FFCVDataset
from launcher.data.ffcv.prepare import prepare
from launcher.data.loading import build_loaders
from launcher.errors import UserError
from launcher.plan.plan import Plan
from launcher.rank.group import single_rank
from launcher.tasks import build_task
from launcher.tasks.predicted_masks import predicted_mask
from tests.images import random_image

MEAN = [0.485, 0.456, 0.406]
FILL = [124, 116, 104]
COUNTS = ["dataset.classes=2", "dataset.train_samples=8", "dataset.val_samples=4", "algorithms=[]"]
# width and height: wide, tall, square, with odd margins, a few rows
SHAPES = [(96, 32), (32, 96), (64, 64), (75, 53), (201, 9)]
SIZES = [(32, 64), (48, 20), (40, 40)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("whole", SIZES)
@pytest.mark.parametrize(("fit", "mode"), [("pad", "border"), ("stretch", "squash")])
def test_whole_images_are_timms(fit: str, mode: str, whole: tuple[int, int], shape: tuple[int, int]) -> None:
    source = random_image(*shape[::-1])
    theirs = create_transform(
        (3, *whole), interpolation="bilinear", crop_mode=mode, crop_pct=1.0, mean=tuple(MEAN), use_prefetcher=True
    )
    expected: Any = theirs(source)
    fill = FILL if fit == "pad" else None
    ours = centre_cut(np.array(source), None, whole, "bilinear", resize_by_pillow, fill)
    assert np.array_equal(ours.transpose(2, 0, 1), expected)


@pytest.mark.parametrize(("shape", "shorter"), [((96, 32), 40), ((32, 96), 80), ((130, 60), 40), ((60, 60), 80)])
def test_crops_to_another_ratio_are_torchvisions(shape: tuple[int, int], shorter: int) -> None:
    """The image covers 40 x 80 pixels, of which the centre is cropped."""
    source = random_image(*shape[::-1])
    expected = np.asarray(T.CenterCrop((32, 64))(T.Resize(shorter)(source)))
    assert np.array_equal(centre_cut(np.array(source), 40, (32, 64), "bilinear", resize_by_pillow), expected)
    ((top, left, height, width, _),) = centre_boxes(np.array([shape[1]]), np.array([shape[0]]), 40.0, (32, 64)).tolist()
    assert abs(width - 2 * height) <= 2
    assert abs(2 * top - (shape[1] - height)) <= 1
    assert abs(2 * left - (shape[0] - width)) <= 1


@given(st.integers(1, 600), st.integers(1, 600), st.integers(0, 10**6), st.sampled_from(["crop", "pad", "stretch"]))
def test_boxes_are_within_any_image_and_whole_at_scale_one(h: int, w: int, index: int, fit: str) -> None:
    image = compose([f"image.fit={fit}"]).config.image
    top, left, height, width, _ = Crops(image, 0, 0, np.array([index])).box(0, h, w)
    assert 0 <= top < top + height <= h
    assert 0 <= left < left + width <= w
    whole = compose([f"image.fit={fit}", "image.scale=[1,1]"]).config.image
    assert fit == "crop" or Crops(whole, 0, 0, np.array([index])).box(0, h, w)[:4] == (0, 0, h, w)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 3:1 and 1:3, one of them by its EXIF rotation, that are red at their ends."""
    root = tmp_path_factory.mktemp("ends")
    for number in range(12):
        pixels = np.full((32, 96, 3), 250, np.uint8)
        pixels[:, :12] = pixels[:, -12:] = (200, 0, 0)
        path = root / ("train" if number < 8 else "val") / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[274] = 6 if number % 3 == 1 else 1
        shown = pixels.transpose(1, 0, 2) if number % 3 == 2 else pixels
        Image.fromarray(np.ascontiguousarray(shown)).save(path, exif=exif)
    return root


def plan_of(images: Path, *words: str) -> Plan:
    sizes = ["image.train_size=[32,48]", "image.eval_size=[32,48]", "image.scale=[1,1]", "image.flip=0"]
    config = compose(
        [f"dataset.path={images}", "launch=cpu", "batch_size=8", "eval_batch_size=4", *COUNTS, *sizes, *words]
    ).config
    return Plan(config, 1, 8)


def batches(plan: Plan) -> list[torch.Tensor]:
    loaders = build_loaders(plan, single_rank(torch.device("cpu")))
    try:
        train, indices, evaluated = {}, [], []
        for pixels, _, numbers in loaders.train.epoch(0):
            train |= dict(zip(numbers.tolist(), pixels, strict=True))
        for pixels, _, numbers in loaders.evaluate:
            evaluated += [*pixels]
            indices += numbers.tolist()
        return [train[number] for number in sorted(train)] + evaluated
    finally:
        loaders.close()


@pytest.mark.parametrize("fit", ["pad", "stretch", "crop"])
def test_training_evaluation_and_ffcv_files_show_the_same(fit: str, images: Path, tmp_path: Path) -> None:
    words = [f"image.fit={fit}", *(["image.eval_resize=32"] if fit == "crop" else [])]
    plain = batches(plan_of(images, *words, "dataloader.workers=0"))
    assert {tuple(one.shape) for one in plain} == {(3, 32, 48)}
    ends = ["dataloader=ffcv", f"dataloader.folder={tmp_path}", "dataloader.files.jpeg_share=0"]
    files = plan_of(images, *words, *ends)
    list(prepare(FFCVDataset.of(files.config), lambda *_: None))
    for one, other in zip(plain, batches(files), strict=True):
        red = [(pixels[0] > 150) & (pixels[1] < 70) for pixels in (one, other)]
        # note: another resize of the same boxes
        assert (red[0] != red[1]).float().mean() < 0.1
        assert red[0].any() or fit == "crop"
        background = (one == torch.tensor(FILL, dtype=torch.uint8)[:, None, None]).all(0)
        assert bool(background.any()) == (fit == "pad")
        if fit == "pad":
            same = (other == torch.tensor(FILL, dtype=torch.uint8)[:, None, None]).all(0)
            assert torch.equal(background, same)


def test_progressive_resizing_scales_both_edges() -> None:
    words = [
        "dataset=imagenet",
        "algorithms=[progressive_resizing]",
        "image.train_size=[64,192]",
        "image.eval_size=[32,48]",
        "epochs=8",
    ]
    config = compose([*words, *COUNTS[:-1]]).config
    plan = Plan(config, 1, 640)
    sizes = [plan.size(step) for step in range(plan.total_steps)]
    assert (sizes[0], sizes[-1]) == ((32, 96), (64, 192))
    assert sizes == [(view, 3 * view) for view in map(plan.view, range(plan.total_steps))]
    assert plan.per_step(plan.view(0)) == 32 * 96
    assert plan.evaluation_size == (32, 48)
    rows = plan_of(Path(), "algorithms=[progressive_resizing]", "algorithms.progressive_resizing.where=loader")
    assert rows.loaded_size(0) == (16, 24)


def test_masks_do_not_count_around_an_image(tmp_path: Path) -> None:
    for name, pixels in {"images": np.full((20, 60, 3), 9, np.uint8), "masks": np.ones((20, 60), np.uint8)}.items():
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    words = ["recipe=small_segmentation", f"dataset.path={tmp_path}", "dataset.classes=2", "dataset.val_split=0.5"]
    config = compose([*words, "image.fit=pad", "image.train_size=[32,48]", "image.eval_size=40", "launch=cpu"]).config
    stream = {name: (tmp_path / name / "0.png").read_bytes() for name in ("images", "masks")}
    record = {"image": stream["images"], "mask": stream["masks"]}
    for decoder, size in (
        (config.task.decoder(config, None), (32, 48)),
        (config.task.evaluation_decoder(config), (40, 40)),
    ):
        draws = decoder.draws(START, np.arange(1))[0]
        image, mask = decoder.decode(record, min(size), draws)
        assert image.shape == (*size, 3)
        assert mask.shape == size
        assert set(np.unique(mask)) == {1, 255}
        assert ((image == FILL).all(2) == (mask == 255)).all()
    task = build_task(config)
    outputs = torch.zeros(1, 2, 40, 40).index_fill_(1, torch.tensor([1]), 1.0)
    states = task.states(outputs, task.targets(torch.from_numpy(mask)[None]))
    assert task.evaluated(states, 1)["pixel_accuracy"] == 1
    outside = outputs.clone()
    outside[:, :, torch.from_numpy(mask == 255)] = 50.0
    targets = task.targets(torch.from_numpy(mask)[None])
    assert torch.equal(task.loss(outside, targets), task.loss(outputs, targets))


@pytest.mark.parametrize(
    ("size", "resize", "fill", "shape"),
    [([32, 64], None, FILL, (32, 64)), ([32, 32], None, None, (32, 32)), ([32, 64], 40, None, (40, 120))],
)
def test_a_predicted_mask_is_of_the_whole_image(
    size: list[int], resize: int | None, fill: list[int] | None, shape: tuple[int, int]
) -> None:
    """A pixel is of the second class if it is dark, as the right half is."""
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, :30] = 200

    def outputs(images: torch.Tensor) -> torch.Tensor:
        assert images.shape == (1, 3, *shape)
        return torch.cat([images[:, :1].float() - 100, 100 - images[:, :1].float()], 1)

    values = {"size": size, "resize": resize, "fill": fill, "interpolation": "bilinear", "exif_orientation": True}
    model: Any = SimpleNamespace(card={"input": values}, device="cpu", outputs=outputs)
    assert np.array_equal(predicted_mask(model, pixels), pixels[..., 0] == 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["image.fit=fill"], "image.fit=fill .*must be one of crop, pad, stretch"),
        (["image.train_size=[32]"], r"image.train_size=\[32\] .*2"),
        (["image.eval_size=[0,32]"], r"image.eval_size.*at least 1"),
        (["image.train_size=[32,32,3]"], "at most 2 items, not 3"),
        (["image.train_size=big"], "image.train_size=big .*whole number"),
    ],
)
def test_other_sizes_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        compose(words)
    assert len(error.value.problems) == 1
