"""A language model as a task of tokens: trained, rehearsed, captured, and on two ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
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
from launcher.data.images import Reader
from launcher.data.loading import EvaluationLoader, Loaders, TrainLoader
from launcher.data.sampling import Request, Shard
from launcher.plan.plan import Plan
from launcher.rank.group import Ranks
from launcher.records.metrics import read_metrics
from launcher.records.run_folder import RunFolder
from launcher.tasks import Details, Task
from launcher.training import trainer
from launcher.training.captured import CapturedSteps
from launcher.training.rehearsal import rehearse
from launcher.training.trainer import Trainer, build_trainer
from tests.graphs import StandIn
from tests.trainers import SMALL, assert_same_state, steps, train_all
from tests.two_ranks import on_two_ranks

WORDS, LENGTH, SAMPLES = 11, 16, 32


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
    device = StandIn()
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
