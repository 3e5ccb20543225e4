"""Run one rank: read the resolved config of the run folder, train, and write records and checkpoints there."""

import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.filesize import decimal

from launcher.config.fields import is_on, size_text
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.files.disk import is_there, reason
from launcher.plan.counted import fitting_batch, step_bytes
from launcher.plan.plan import Plan
from launcher.rank.group import any_rank
from launcher.rank.signs import COMMAND, STOP
from launcher.records.environment import write_environment
from launcher.records.mirror import mirror_of
from launcher.records.run_folder import RunFolder
from launcher.training.callbacks import Callbacks
from launcher.training.captured import CapturedSteps, Capturer, train_without, why_not_captured
from launcher.training.compiled import compile_run
from launcher.training.features import use_features
from launcher.training.loop import evaluate_held_out, train
from launcher.training.metric_logger import MetricLogger
from launcher.training.nonfinite import NonFiniteGuard
from launcher.training.opened import opened
from launcher.training.rehearsal import rehearse_run
from launcher.training.saving import Saver, newest_on_all_ranks
from launcher.training.trainer import Trainer


def train_rank(run_folder: Path) -> bool:
    """Train and evaluate a run on one rank, from its newest checkpoint if there is one.

    Returns False if a rank was stopped.
    """
    finished = False
    with opened(run_folder) as run:
        folder, config, ranks = run.folder, run.config, run.ranks
        if ranks.is_first and not is_there(folder.environment):
            gpus = [ranks.device_name] * ranks.local_world_size if ranks.device.type != "cpu" else []
            write_environment(folder.environment, json.loads(os.environ.get(COMMAND, "[]")), gpus)
        state = newest_on_all_ranks(folder, ranks)
        with run.trainer(config, state) as trainer:
            trainer.callbacks = Callbacks(config.callbacks, folder.path)
            if state is not None:
                trainer.load_state_dict(state)
            use_features(trainer)
            compile_run(trainer)
            with explain_out_of_memory(trainer.plan):
                rehearse_run(trainer)
            capture_run(trainer)
            mirror = mirror_of(config, folder.path.name) if ranks.is_first else None
            if not any_rank(STOP.requested):
                with (
                    MetricLogger(trainer, folder, resumed=state is not None) as logger,
                    Saver(folder, config.checkpoint, ranks, mirror) as saver,
                ):
                    guard = NonFiniteGuard(trainer, logger)
                    with explain_out_of_memory(trainer.plan):
                        finished = train(trainer, logger, saver, guard, STOP)
                    finished = finished and evaluate_held_out(trainer, logger, STOP)
                    logger.log_end(finished=finished)
                    trainer.callbacks.raise_error()
                    if trainer.train_step.captured:
                        print(trainer.train_step.captured.summary(), flush=True)
                if ranks.is_first:
                    draw(folder, config)
    return finished


def draw(folder: RunFolder, config: RunConfig) -> None:
    """Draw the learning curve; a failed write is a warning."""
    from launcher.records.learning_curve import draw_curve  # note: a second for matplotlib

    title = [config.recipe or "no recipe", config.model.architecture, config.dataset.title]
    try:
        draw_curve(folder, config.task, " \u00b7 ".join(title))
    except (OSError, UserError) as error:
        why = reason(error) if isinstance(error, OSError) else error
        print(f"warning: cannot write the learning curve: {why}", flush=True)


@contextmanager
def explain_out_of_memory(plan: Plan) -> Iterator[None]:
    """Turn running out of GPU memory in a training step into an error with a smaller batch size.

    Raises UserError if a step does not fit into GPU memory. An evaluation's own error passes unchanged.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        if "evaluate" in {frame.name for frame in traceback.extract_tb(error.__traceback__)}:
            raise  # note: another key sets its batch size
        count, reason = plan.rank_batch // plan.accumulation, str(error).partition(". ")[0]
        samples = f"{count_of(count, 'sample')} of {size_text(plan.full_size)} {plan.config.task.unit}"
        message = f"{samples} at a time do not fit into GPU memory ({reason})"
        step, too_large = step_bytes(plan), 2.0
        if step is not None:
            total = torch.cuda.get_device_properties().total_memory
            message += f"; the counted step takes {decimal(step)} of {decimal(total)}"
            # note: a count that fits is too low
            too_large = max(too_large, step / total)
        fitting = fitting_batch(plan, too_large, 1)
        message += (
            f"; device_batch_size={fitting} keeps the global batch" if fitting else "; use a smaller model or size"
        )
        if plan.config.model.checkpointing == "off":
            message += "; model.checkpointing=on saves memory but takes longer"
        problem = Problem(message, "device_batch_size", plan.config.device_batch_size)
        raise UserError(problem) from None


def capture_run(trainer: Trainer) -> None:
    """Capture steps if `cuda_graphs` requires it, or print why not.

    Raises UserError if steps cannot be captured, with cuda_graphs=require.
    """
    value = trainer.config.cuda_graphs
    if not is_on(value):
        return
    step = trainer.train_step
    reason = why_not_captured(trainer.ranks, step.engine, step.optimizer)
    if reason is None:
        step.captured = CapturedSteps(Capturer(trainer.ranks.device), value)
    elif trainer.ranks.is_first or value == "require":
        train_without(value, reason)
