"""Images with masks as a task, and the algorithms that do not act on its records."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from launcher.config.compose import compose
from launcher.config.declaration import Size
from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.config.schema import RunConfig
from launcher.data.images import Draws, RandomCrops
from launcher.data.index import Images, Texts
from launcher.data.records import Record, Records
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import plan_for
from launcher.rank.group import Ranks
from launcher.records.run_folder import RunFolder
from launcher.tasks import Details
from launcher.tasks.classification import ClassificationConfig
from launcher.tasks.images import ImageTask, ImageTaskConfig
from launcher.training import trainer
from launcher.training.trainer import build_trainer
from tests.trainers import SMALL, train_all

SIDE, SAMPLES = 24, 32


@dataclass(frozen=True, config=STRICT)
class MasksConfig(ImageTaskConfig):
    metrics = (Metric("miou", "mean IoU"),)
    needs = ("image", "mask")

    name: Literal["masks"]

    def decoder(self, config: RunConfig, change_image: Any) -> Both:
        return Both(config)

    def evaluation_decoder(self, config: RunConfig) -> Both:
        return Both(config)

    def records(self, folder: Images, decoder: Any) -> Pairs:
        return Pairs(folder, decoder)


class Both(RandomCrops):
    """Cuts image and mask by one box."""

    def decode(self, record: Record, view: int, draws: Draws) -> tuple[Any, Any]:
        mask = self.whole(record["mask"])[..., 0]
        top, left, height, width, mirrored = draws.box_of(*mask.shape)
        rows, columns = (start + (np.arange(view) * edge) // view for start, edge in ((top, height), (left, width)))
        part = mask[rows[:, None], columns[None]]
        pixels = self.crop(record["image"], draws.box_of, view)
        return pixels, np.ascontiguousarray(part[:, ::-1] if mirrored else part).astype(np.int64)


class Masks(ImageTask):
    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor, **of_classes: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), targets)

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        classes = torch.arange(2)[:, None, None, None]
        ours, theirs = outputs.argmax(1) == classes, targets == classes
        return {"both": (ours & theirs).sum((1, 2, 3)), "any": (ours | theirs).sum((1, 2, 3))}

    def metrics(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        return {"miou": (states["both"] / states["any"]).mean().item()}

    def blank(self, count: int, size: Size, device: torch.device) -> tuple[Tensor, Tensor]:
        images, _ = super().blank(count, size, device)
        return images, torch.zeros(count, *size, dtype=torch.int64, device=device)

    def output_shape(self, count: int, size: Size) -> tuple[int, ...]:
        return count, 2, *size

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        raise NotImplementedError

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        return []


class Pairs(Records):
    """Images with a bright rectangle, and the mask of that."""

    def record(self, number: int) -> Record:
        random = np.random.default_rng(number)
        top, left = random.integers(0, SIDE // 2, 2)
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[top : top + SIDE // 2, left : left + SIDE // 2] = 1
        image = random.integers(0, 60, (SIDE, SIDE, 3)) + 160 * mask[..., None]
        return {"image": png(image.astype(np.uint8)), "mask": png(mask)}


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def test_a_segmentation_trains_by_the_loop_on_masks_cut_as_their_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [*SMALL, "schedule.warmup=0ba", "algorithms=[ema,cutout,channels_last]", "optimizer.lr=0.5"]
    config = replace(compose([*small, "logger.tensorboard=false"]).config, task=MasksConfig(name="masks"))
    folder = Images("train", "", [*"0123456789"], Texts(["none"] * SAMPLES), np.zeros(SAMPLES, np.int64))
    monkeypatch.setattr(type(config.dataloader), "images", lambda *_: [folder, folder])
    monkeypatch.setattr(trainer, "build_model", lambda *_: nn.Conv2d(3, 2, 3, padding=1))
    run = build_trainer(config, Ranks(0, 1, 0, 1, torch.device("cpu")))
    images, masks, _ = next(iter(run.rest_of_epoch()))
    assert images.shape[2:] == masks.shape[1:] == (16, 16)
    agreement = (images.float().mean(1) > 110) == masks.bool()
    assert agreement.float().mean() > 0.95
    train_all(run, RunFolder(tmp_path))
    assert run.best["miou"] > 0.7


@pytest.mark.parametrize(
    ("needs", "refused"),
    [(("image", "label"), []), (("image", "mask"), ["mixup", "colout"]), (("tokens",), ["mixup", "colout", "cutout"])],
)
def test_algorithms_are_refused_for_records_that_they_do_not_act_on(
    needs: tuple[str, ...], refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose([*SMALL, "algorithms=[mixup,colout,cutout,ema]"]).config
    monkeypatch.setattr(ClassificationConfig, "needs", needs)
    lines = []
    try:
        check(plan_for(config, 1), {})
    except UserError as error:
        # note: the model and the loader are for images too
        lines = sorted(line for line in map(str, error.problems) if line.startswith("algorithms."))
    assert [line.partition("=")[0] for line in lines] == sorted(f"algorithms.{name}" for name in refused)
    assert all("has no meaning with task=classification: it acts on image and label" in line for line in lines[-2:])
