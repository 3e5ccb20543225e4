"""One rank: reads the resolved config of its run folder, trains, and leaves records there."""

from __future__ import annotations

import copy
import time
from pathlib import Path

import numpy as np
import torch

from launcher.config.resolved import read
from launcher.data.unreadable import read_skipped
from launcher.rank.group import any_rank, check_same_config, join_ranks
from launcher.rank.signs import STOP
from launcher.records.folder import RunFolder
from launcher.training.captured import CapturedSteps, Capturer, uncaptured
from launcher.training.checkpoint import read_initial
from launcher.training.compiled import compile_run
from launcher.training.loop import evaluate_held_out, train
from launcher.training.memory import explaining_memory
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver, newest_for_all
from launcher.training.trainer import Trainer, build_trainer


def work(run_folder: Path) -> None:
    """The life of a run on one rank."""
    folder = RunFolder(run_folder)
    config = read(folder.config)
    with join_ranks(config) as ranks:
        state = newest_for_all(folder, ranks)
        check_same_config(config)
        initial = read_initial(folder.initial) if state is None and config.model.weights is not None else None
        trainer = build_trainer(config, ranks, read_skipped(folder.skipped, config.dataset), initial)
        if state is not None:
            trainer.load_state_dict(state)
        compile_run(trainer)
        capture_run(trainer)
        if config.launch.warm_up:
            warm_up(trainer)
        if not any_rank(STOP.asked):
            with (
                MetricLogger(trainer, folder, resumed=state is not None) as logger,
                Saver(folder, config.checkpoint, ranks) as saver,
            ):
                if state is None and config.nonfinite.policy == "rollback":
                    saver.save(trainer.state_dict(), best=False, last=True)
                guard = NonFiniteGuard(trainer, folder, logger, saver)
                with explaining_memory(trainer):
                    finished = train(trainer, logger, saver, guard, STOP) and evaluate_held_out(trainer, logger, STOP)
                logger.log_end(finished=finished)
        trainer.loaders.close()


def capture_run(trainer: Trainer) -> None:
    """With `cuda_graphs=on`, have steps captured, or say why they are not."""
    if trainer.config.cuda_graphs == "off":
        return
    reason = _why_not_captured(trainer)
    if reason is None:
        trainer.train_step.captured = CapturedSteps(Capturer(trainer.ranks.device))
    elif trainer.ranks.is_first:
        print(uncaptured(reason), flush=True)


def _why_not_captured(trainer: Trainer) -> str | None:
    if trainer.ranks.device.type != "cuda":
        return "they need a GPU"
    if trainer.ranks.world_size > 1:
        return "with several ranks the exchange within DDP would be captured too, which no GPU has run yet"
    if changing := trainer.train_step.engine.changing_parameters:
        return f"{changing[0]} changes which parameters learn"
    if not trainer.train_step.optimizer.capturable:
        return f"optimizer.name={trainer.config.optimizer.name} is not built to be captured"
    return None


def warm_up(trainer: Trainer) -> None:
    """Take the last step of each size that is still to come, on black images, and restore everything."""
    start, last = time.perf_counter(), {}
    for number in range(trainer.next_step, trainer.plan.total_steps):
        last[trainer.plan.image_size(number)] = number
    state = copy.deepcopy(trainer.state_dict())
    for number in last.values():
        size = trainer.plan.loaded_size(number)
        images = torch.zeros(trainer.plan.rank_batch, 3, size, size, dtype=torch.uint8, device=trainer.ranks.device)
        targets = torch.zeros(len(images), dtype=torch.long, device=trainer.ranks.device)
        trainer.train_step(images, targets, np.arange(len(images)), trainer.moment(number))
    trainer.load_state_dict(state)
    if trainer.ranks.is_first:
        seconds = time.perf_counter() - start
        print(f"warmed up {len(last)} image sizes in {seconds:.1f} s, which no clock counts", flush=True)
