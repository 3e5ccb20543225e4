"""Training runs on the simulated device, and what must be equal in every order of execution."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from launcher.config.compose import compose
from launcher.config.schema import RunConfig
from launcher.data.inspection import inspect_data
from launcher.rank.group import Ranks
from launcher.rank.signs import StopFlag
from launcher.records.run_folder import RunFolder
from launcher.training import buckets, captured, checkpoint, meters, trainer
from launcher.training.loop import train
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver, newest_on_all_ranks
from launcher.training.step import TrainStep
from launcher.training.trainer import Trainer
from launcher.training.worker import capture_run
from tests.networks import use_tiny
from tests.simulated_gpu.cases import Case
from tests.simulated_gpu.torch_sim import WAITS, may_wait, native, refused_waits
from tests.trainers import EARLY, SMALL, teacher, tensors

PARTS = ("model", "weights", "optimizer", "algorithms", "scaler")
EVENTS = ["eval_every=4ba", "checkpoint.every=3ba", "logger.interval=2ba", "logger.tensorboard=false", "epochs=2"]
TOKENS = [
    "recipe=none",
    *("task=language", "task.length=16", "dataset=text", "dataloader=tokens", "dataset.classes=257", "model=gpt"),
    *("model.context=16", "model.width=16", "model.depth=2", "model.heads=2", "model.mlp_width=32"),
    *("dataset.train_samples=48", "dataset.val_samples=12", "batch_size=8", "eval_batch_size=4", "launch=cpu"),
    *("optimizer=adamw", "optimizer.lr=0.01", "optimizer.scale_lr=off", "schedule.warmup=0ba"),
]
MASKS = [
    "recipe=none",
    *("task=segmentation", "dataset=shape_masks", "dataloader=masks", "dataloader.workers=0", "model=unet"),
    *("model.filters=8", "model.levels=3", "loss=dice_cross_entropy", "launch=cpu", "dataset.native_size=32"),
    *("optimizer=adamw", "optimizer.lr=0.01", "optimizer.scale_lr=off"),
]
FILES = ("torchvision", "ffcv")
FEW = [
    *("batch_size=12", "dataset.train_samples=60", "dataset.val_samples=24", "eval_batch_size=4"),
    *("schedule.warmup=0ba", "schedule.fit=off", *EVENTS),
]
# note: they wait for the device by design: evaluations, checkpoints, clocks, and the one read of a step
MAY_WAIT = ((Trainer, "evaluate"), (Trainer, "state_dict"), (Saver, "save"), (meters.Stopwatch, "switch"))


@dataclass(frozen=True)
class Result:
    """A run's end: tensors by part, metrics, and the parts of its last checkpoint; counts of its steps.

    launches: the most of a step that replays a graph, or of any step without graphs. waits: of the host, by their kind.
    ahead: the most steps of the first epoch that the device has not completed when the next one draws its numbers.
    """

    state: dict[str, list[Tensor]]
    history: Sequence[Any]
    saved: dict[str, list[Tensor]]
    launches: int
    waits: dict[str, int]
    captures: int
    ahead: int


def prepare() -> None:
    """Make this process train tiny networks, capture after one step, and count no wait where waits are allowed."""
    torch.set_num_threads(1)
    use_tiny()
    captured.WARMUP_STEPS = 1
    # note: several of them in a tiny network
    buckets.BUCKET_BYTES = 1 << 10, 1 << 13
    for owner, name in MAY_WAIT:
        setattr(owner, name, may_wait(getattr(owner, name)))


class Watched:
    """The steps of a run: counts their launches, refuses their waits, makes some NaN, and stops the run after one."""

    def __init__(self, run: Trainer, case: Case, stop_after: int | None):
        self.waits: dict[str, int] = {}
        self.launches, self.stop, self._stop_after, self._bad = [0], StopFlag(), stop_after, case.bad
        self._gate = torch.ones((), device=run.ranks.device)
        self._is_first, self.ahead = True, 0
        self._copied: list[Any] = []
        if case.bad:
            # note: a tensor at one address, which captured steps read too
            run.train_step.model.register_forward_pre_hook(lambda _, inputs: (inputs[0] * self._gate,))

    @contextmanager
    def watching(self) -> Iterator[None]:
        inner = TrainStep.__call__

        def step(
            train_step: TrainStep, inputs: Tensor, labels: Tensor, indices: Any, moment: Any, requests: Any
        ) -> Any:
            self._copied = [event for event in self._copied if not event.query()]
            self.ahead = max(self.ahead, len(self._copied) * (moment.epoch == 0))
            self._gate.fill_(torch.nan if moment.step in self._bad else 1.0)
            graphs = train_step.captured
            captures, replays, before = graphs and graphs.captures, graphs and graphs.replays, native.launches()
            # note: the first step creates what is created lazily
            with nullcontext() if self._is_first else refused_waits():
                outcome = inner(train_step, inputs, labels, indices, moment, requests)
            if not self._is_first and (graphs is None or (graphs.captures == captures and graphs.replays != replays)):
                self.launches.append(native.launches() - before)
            self._is_first = False
            self._copied += filter(None, [outcome.values._copied])
            self.stop.requested = self.stop.requested or moment.step == self._stop_after
            return outcome

        with patch.object(TrainStep, "__call__", step):
            yield


@cache
def config_of(case: Case, folder: Path) -> RunConfig:
    """Compose a case on a few images; `folder` has image files, and FFCV's of them."""
    if case.captured:
        return replace(config_of(replace(case, captured=False), folder), cuda_graphs="on")
    recipes = [word for word in case.words if word.startswith("recipe=")]
    words = [word for word in case.words if word not in recipes]
    small = [*SMALL, *FEW]
    if case.loader == "tokens":
        small = [*TOKENS, *EVENTS, f"dataset.path={folder}/text"]
        small += [f"dataloader.folder={folder}/tokens"]
    elif case.loader == "masks":
        small = [*MASKS, *FEW]
    elif case.loader != "drawn":
        words += ["dataset=image_folder", f"dataset.path={folder}", f"dataloader={case.loader}", "dataloader.workers=1"]
        words += ["dataset.train_samples=null", "dataset.val_samples=null"]
    on = compose([*recipes, *words[:1]]).config.algorithms
    early = [word for name in on for word in EARLY.get(name, [])]
    config = compose([*recipes, *small, "precision=fp32", *early, *words]).config
    config = inspect_data(config, must_exist=True).config if case.loader in FILES else config
    return replace(config, cuda_graphs="off")


def train_case(case: Case, ranks: Ranks, folder: Path, images: Path, order: str, stop_after: int | None) -> Result:
    """Train a case by an order of execution; with `stop_after`, stop it after that step and resume it."""
    run_folder = RunFolder(folder)
    folder.mkdir(exist_ok=True)
    first = start(case, ranks, run_folder, images, order, stop_after)
    run, watched = first if stop_after is None else start(case, ranks, run_folder, images, order, None)
    native.order("eager", 0)
    state = run.state_dict()
    saved = checkpoint.newest_valid(run_folder.checkpoints) if ranks.is_first else None
    return Result(
        {part: [one.detach().cpu().clone() for one in _of(state, part)] for part in PARTS},
        run.history,
        {part: _of(saved, part) for part in PARTS} if saved else {},
        max(watched.launches),
        watched.waits,
        run.train_step.captured.captures if run.train_step.captured else 0,
        watched.ahead,
    )


def _of(state: dict[str, Any], part: str) -> list[Tensor]:
    # note: a loss scaler's state is numbers
    return [torch.tensor(list(state[part].values()))] if part == "scaler" else tensors(state[part])


def start(
    case: Case, ranks: Ranks, folder: RunFolder, images: Path, order: str, stop_after: int | None
) -> tuple[Trainer, Watched]:
    """Train from the newest checkpoint, if there is one, to the end or until it is stopped."""
    name, _, seed = order.partition(":")
    native.order("eager", 0)
    config = config_of(case, images)
    known = teacher(config)
    if known:
        known.network.to(ranks.device)
    run = trainer.build_trainer(config, ranks, teacher=known)
    if state := newest_on_all_ranks(folder, ranks):
        run.load_state_dict(state)
    capture_run(run)
    watched = Watched(run, case, stop_after)
    WAITS.counts.clear()
    native.order(name, int(seed or 0))
    with (
        watched.watching(),
        MetricLogger(run, folder, resumed=state is not None) as logger,
        Saver(folder, config.checkpoint, ranks) as saver,
    ):
        train(run, logger, saver, NonFiniteGuard(run, logger), watched.stop)
    watched.waits = dict(WAITS.counts)
    run.loaders.close()
    return run, watched


def differences(expected: Result, result: Result, parts: Sequence[str] = ()) -> list[str]:
    """Return what differs between two runs, and between a run and its checkpoint; `parts`: in these alone."""
    wrong = []
    for part, ours in ((part, ours) for part, ours in result.state.items() if part in (parts or PARTS)):
        for text, theirs in (
            (f"{part} differ", expected.state[part]),
            (f"saved {part} differ", result.saved.get(part)),
        ):
            if theirs is not None and (bad := sum(not same(*pair) for pair in zip(ours, theirs, strict=True))):
                wrong.append(f"{bad} of {len(ours)} tensors of {text}")
    if not parts and expected.history != result.history:
        wrong.append(f"metrics {result.history[-1:]} instead of {expected.history[-1:]}")
    return wrong


def same(ours: Tensor, theirs: Tensor) -> bool:
    return torch.equal(ours, theirs) and not (ours.is_floating_point() and bool(ours.isnan().any()))
