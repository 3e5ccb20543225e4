"""One rank: reads the resolved config of its run folder, trains, and leaves records there."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from launcher.config.resolved import read
from launcher.config.schema import RunConfig
from launcher.data.unreadable import read_skipped
from launcher.errors import Problem, UserError
from launcher.plan.plan import Plan
from launcher.rank.group import any_rank, join_ranks
from launcher.rank.signs import COMMAND, STOP
from launcher.records.environment import write_environment
from launcher.records.folder import RunFolder
from launcher.training.captured import CapturedSteps, Capturer, uncaptured
from launcher.training.checkpoint import read_initial
from launcher.training.compiled import compile_run
from launcher.training.loop import evaluate_held_out, train
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.saving import Saver, newest_for_all
from launcher.training.trainer import Trainer, build_trainer


def work(run_folder: Path) -> None:
    """The life of a run on one rank."""
    folder = RunFolder(run_folder)
    config = read(folder.config)
    with join_ranks(config) as ranks:
        if ranks.is_first and not folder.environment.exists():
            gpus = [ranks.device_name] * ranks.local_world_size if ranks.device.type == "cuda" else []
            write_environment(folder.environment, json.loads(os.environ.get(COMMAND, "[]")), gpus)
        state = newest_for_all(folder, ranks)
        initial = read_initial(folder.initial) if state is None and config.model.weights is not None else None
        trainer = build_trainer(config, ranks, read_skipped(folder.skipped, config.dataset), initial)
        if state is not None:
            trainer.load_state_dict(state)
        compile_run(trainer)
        capture_run(trainer)
        if not any_rank(STOP.requested):
            with (
                MetricLogger(trainer, folder, resumed=state is not None) as logger,
                Saver(folder, config.checkpoint, ranks) as saver,
            ):
                if state is None and config.nonfinite.policy == "rollback":
                    saver.save(trainer.state_dict(), best=False, last=True)
                guard = NonFiniteGuard(trainer, folder, logger, saver)
                with explaining_memory(trainer.plan):
                    finished = train(trainer, logger, saver, guard, STOP)
                finished = finished and evaluate_held_out(trainer, logger, STOP)
                logger.log_end(finished=finished)
            if ranks.is_first:
                draw(folder, config)
        trainer.loaders.close()


def draw(folder: RunFolder, config: RunConfig) -> None:
    """Draw the learning curve; a disk that does not take it is a warning."""
    from launcher.records.curve import draw_curve  # note: matplotlib takes a second

    title = [config.recipe or "no recipe", config.model.architecture, config.dataset.name]
    try:
        draw_curve(folder, config.task, " \u00b7 ".join(title))
    except OSError as error:
        print(f"warning: no learning curve: {error.strerror}", flush=True)


@contextmanager
def explaining_memory(plan: Plan) -> Iterator[None]:
    """Around steps; an evaluation's failure passes.

    Raises:
        UserError: the GPU's memory does not hold a step; names a batch that needs half, or less.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        if "evaluate" in {frame.name for frame in traceback.extract_tb(error.__traceback__)}:
            raise  # note: whose batch is another key
        part, reason = plan.rank_batch // plan.accumulation, str(error).partition(". ")[0]
        refused = f"{part} images of {plan.train_size} px at a time do not fit into GPU memory ({reason})"
        half = next((images for images in range(part // 2, 0, -1) if plan.rank_batch % images == 0), None)
        smaller = f"device_batch_size={half} keeps the global batch" if half else "use a smaller model or size"
        less = "; model.checkpointing=on saves memory but takes longer" * (plan.config.model.checkpointing == "off")
        problem = Problem(f"{refused}; {smaller}{less}", "device_batch_size", plan.config.device_batch_size)
        raise UserError(problem) from None


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
        return "capturing DDP's all-reduce with several ranks is untested"
    if changing := trainer.train_step.engine.changing_parameters:
        return f"{changing[0]} changes which parameters learn"
    if not trainer.train_step.optimizer.capturable:
        return f"optimizer.name={trainer.config.optimizer.name} does not support capture"
    return None
