"""Tasks whose records are no images with labels: tokens, and images with masks, each with its own model and source."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

from launcher.algorithms.base import Algorithm, Size, Transform
from launcher.config.algorithms import Algorithms
from launcher.config.compose import compose
from launcher.config.declaration import AlgorithmConfig, RunPlan
from launcher.config.fields import STRICT
from launcher.config.goals import Metric
from launcher.config.schema import Dataset, RunConfig
from launcher.config.tasks import TaskConfig
from launcher.data.batch import Batch, Loaded
from launcher.data.folder import Folder
from launcher.data.images import Draws, RandomCrops, Reader
from launcher.data.loading import EvaluationLoader, Loaders, TrainLoader
from launcher.data.records import Record, Records
from launcher.data.sampling import Request, Shard
from launcher.errors import UserError
from launcher.plan.checks import check
from launcher.plan.plan import Plan, plan_for
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.tasks import Details, Task
from launcher.tasks.classification import ClassificationConfig
from launcher.tasks.images import ImageTask, ImageTaskConfig
from launcher.training import trainer
from launcher.training.captured import CapturedSteps
from launcher.training.rehearsal import rehearse
from launcher.training.trainer import Trainer, build_trainer
from tests.graphs import StandIn
from tests.trainers import SMALL, assert_same_state, steps, tensors, train_all
from tests.two_ranks import on_two_ranks

WORDS, LENGTH, SIDE, SAMPLES = 11, 16, 24, 32


@dataclass(frozen=True, config=STRICT)
class TokensConfig(TaskConfig):
    metrics = (Metric("perplexity", "perplexity", better="lower", is_share=False),)
    needs, axes, unit, view_title = ("tokens",), 1, "tokens", "tokens"
    view_keys = ("task.length", "task.length")

    name: Literal["tokens"]
    length: int

    def full_view(self, config: RunConfig) -> int:
        return self.length

    evaluation_view = full_view

    def outputs(self, dataset: Dataset) -> int:
        return WORDS

    def decoder(self, *_: object) -> None:
        """Its source needs none."""

    evaluation_decoder = records = decoder


class Tokens(Task):
    def targets(self, labels: Tensor) -> Tensor:
        return labels

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        nats = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")
        return {"nats": nats, "tokens": torch.ones_like(targets).sum()}

    def metrics(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        return {"perplexity": math.exp(states["nats"].item() / states["tokens"].item())}

    def blank(self, count: int, view: int, device: torch.device) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(count, view, dtype=torch.int64, device=device)
        return zeros, zeros

    def output_shape(self, count: int, view: int) -> tuple[int, ...]:
        return count, view, WORDS

    def details(self, names: Sequence[str], *, with_images: bool) -> Details:
        raise NotImplementedError

    def predictions(self, outputs: Tensor, names: Sequence[str], top: int) -> list[list[tuple[str, float]]]:
        return [[(str(int(row[-1].argmax())), 1.0)] for row in outputs]


@dataclass(frozen=True, config=STRICT)
class LengthWarmupConfig(AlgorithmConfig, change_batch=10, acts_on=("tokens",)):
    short: int

    def size_after(self, plan: RunPlan, step: int, size: Size) -> Size:
        return (self.short,) if step < plan.total_steps // 2 else size


class LengthWarmup(Algorithm[LengthWarmupConfig]):
    def change_batch(self, batch: Batch, size: Size) -> Transform:
        (length,) = self.values.size_after(self.context.plan, batch.moment.step, size)
        return Transform((), lambda b: replace(b, inputs=b.inputs[:, :length], targets=b.targets[:, :length]))


class Text(Reader):
    """Numbers that mostly rise by one, at the view of each request."""

    def __init__(self) -> None:
        rises = np.random.default_rng(0).random(SAMPLES * LENGTH + 1) < 0.9
        self.text = np.cumsum(rises) % WORDS
        self.labels = np.zeros(SAMPLES, np.int64)

    def batches(self, requests: Iterable[Request]) -> Iterator[Loaded]:
        for request in requests:
            places = (request.indices * LENGTH)[:, None] + np.arange(request.view + 1)
            words = torch.from_numpy(self.text[places])
            yield words[:, :-1], words[:, 1:], request.indices


def language() -> RunConfig:
    small = [*SMALL, "eval_batch_size=6", "schedule.warmup=0ba", "logger.interval=1ba", "optimizer.lr=1.0"]
    config = compose([*small, "algorithms=[ema]", "logger.tensorboard=false"]).config
    algorithms = Algorithms.of({**config.algorithms, "length_warmup": LengthWarmupConfig(short=4)})
    return replace(config, task=TokensConfig(name="tokens", length=LENGTH), algorithms=algorithms)


def loaders_of(plan: Plan, ranks: Ranks, readers: Sequence[Reader]) -> Loaders:
    shard = Shard(ranks.rank, ranks.world_size, 0, 0, ranks.device)
    evaluation = EvaluationLoader(readers[1], shard, plan.rank_eval_batch, plan.evaluation_view)
    return Loaders(TrainLoader(plan, readers[0], shard, None), evaluation)


def run_of(config: RunConfig, rank: int = 0, count: int = 1) -> Trainer:
    """Build a trainer of the language model."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "build_model", lambda *_: Bigrams())
        patched.setattr(trainer, "build_loaders", lambda plan, ranks, **_: loaders_of(plan, ranks, [Text(), Text()]))
        return build_trainer(config, Ranks(rank, count, rank, count, torch.device("cpu")))


class Bigrams(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Embedding(WORDS, 8), nn.Linear(8, WORDS))


def test_a_language_model_trains_by_the_loop_at_rising_lengths(tmp_path: Path) -> None:
    run = run_of(language())
    before = run.evaluate(lambda: False)
    assert before
    train_all(run, RunFolder(tmp_path))
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["view"] for row in rows if row["kind"] == "train"] == [4] * 6 + [LENGTH] * 6
    assert run.plan.amount == 6 * 4 + 6 * LENGTH
    assert run.best["perplexity"] < 0.8 * before.metrics["perplexity"]
    (*_, last) = (row for row in rows if row["kind"] == "eval")
    assert math.log(last["metrics"]["perplexity"]) == pytest.approx(last["loss"], rel=1e-5)


def test_steps_of_tokens_are_rehearsed_and_captured_by_length() -> None:
    plain, run = run_of(language()), run_of(language())
    assert rehearse(run) == 2
    device = StandIn(lambda: tensors(run.state_dict()))
    run.train_step.capture(CapturedSteps(device, "on"))  # type: ignore[arg-type]
    assert steps(run, 12) == steps(plain, 12)
    assert_same_state(run, plain)
    assert device.captures == 2


def compare_ranks(rank: int, folder: Path) -> None:
    run = run_of(language(), rank, 2)
    losses = steps(run, 12)
    torch.save([losses, run.weights(), run.evaluate(lambda: False)], folder / f"{rank}.pt")


def test_two_ranks_learn_the_same_as_one(tmp_path: Path) -> None:
    on_two_ranks(compare_ranks, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(2))
    alone = run_of(language())
    steps(alone, 12)
    for name, weight in alone.weights().items():
        torch.testing.assert_close(first[1][name], weight)
        assert torch.equal(first[1][name], second[1][name])
    assert first[2] == second[2]
    assert first[2].metrics == pytest.approx(alone.evaluate(lambda: False).metrics, rel=1e-5)  # type: ignore[union-attr]


@dataclass(frozen=True, config=STRICT)
class MasksConfig(ImageTaskConfig):
    metrics = (Metric("miou", "mean IoU"),)
    needs = ("image", "mask")

    name: Literal["masks"]

    def decoder(self, config: RunConfig, change_image: Any) -> Both:
        return Both(config)

    def evaluation_decoder(self, config: RunConfig) -> Both:
        return Both(config)

    def records(self, folder: Folder, decoder: Any) -> Pairs:
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

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        return F.cross_entropy(outputs.float(), targets)

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        classes = torch.arange(2)[:, None, None, None]
        ours, theirs = outputs.argmax(1) == classes, targets == classes
        return {"both": (ours & theirs).sum((1, 2, 3)), "any": (ours | theirs).sum((1, 2, 3))}

    def metrics(self, states: Mapping[str, Tensor], samples: int) -> dict[str, float]:
        return {"miou": (states["both"] / states["any"]).mean().item()}

    def blank(self, count: int, view: int, device: torch.device) -> tuple[Tensor, Tensor]:
        images, _ = super().blank(count, view, device)
        return images, torch.zeros(count, view, view, dtype=torch.int64, device=device)

    def output_shape(self, count: int, view: int) -> tuple[int, ...]:
        return count, 2, view, view

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
    folder = Folder("", "train", [*"0123456789"], ["none"] * SAMPLES, np.zeros(SAMPLES, np.int64))
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
        lines = sorted(map(str, error.problems))
    assert [line.partition("=")[0] for line in lines] == sorted(f"algorithms.{name}" for name in refused)
    assert all("has no meaning with task=classification: it acts on image and label" in line for line in lines[-2:])
