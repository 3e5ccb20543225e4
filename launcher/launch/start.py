"""A composed config to a finished run: checks, run folder, ranks, summary.

What is slow to import, torch and matplotlib, is imported where it is needed: every mistake is answered before.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from launcher.config.changes import changed, continued, is_free
from launcher.config.compose import Composed
from launcher.config.layers import COMMAND_LINE
from launcher.config.models import TorchvisionModel
from launcher.config.resolved import read, write
from launcher.config.schema import RunConfig
from launcher.console import console, progress_bars
from launcher.data.identity import identity
from launcher.data.inspect import inspect_data
from launcher.data.shapes import ensure_shapes
from launcher.data.unreadable import read_skipped, write_skipped
from launcher.errors import DONE, FAILED, Problem, UserError, one_line
from launcher.launch.devices import Devices, decide, with_precision
from launcher.launch.terminal import PlainView
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan, plan_for
from launcher.rank.main import REPLAY_STEP
from launcher.records.environment import write_environment
from launcher.records.folder import RunFolder, create, create_or_join, note_dataset
from launcher.records.metrics import read_metrics
from launcher.records.prediction import adopt_estimate
from launcher.records.progress import ProgressView
from launcher.records.summary import summary_table

if TYPE_CHECKING:
    from launcher.weights.pretrained import Pretrained


def start(composed: Composed) -> int:
    """Train a new run; returns the exit code.

    Raises:
        UserError: something cannot work; nothing has been written then.
    """
    out = console()
    with progress_bars(out) as (_, report):
        available = inspect_data(composed.config, must_exist=True, report=report)
    devices = decide(available.config.launch)
    plan = _plan(available.config, devices)
    check(plan, composed.origins)
    if not isinstance(plan.config.model, TorchvisionModel):
        from launcher.training.model_check import check_model  # note: seconds, for torch and timm

        check_model(plan, composed.origins)
    plan = with_precision(plan, devices)
    plan.config.logger.check()
    initial = _initial(plan.config, available.classes, composed.origins)
    plan = replace(plan, config=initial.config) if initial else plan
    config = plan.config
    said = initial.notes if initial else []
    for note in (*composed.notes, *available.notes, *said, *notes(plan), *devices.notes):
        out.print(f"note: {note}", style="yellow", markup=False)
    # note: takes seconds, in which a Ctrl-C would leave an empty run folder behind
    import launcher.launch.elastic  # noqa: F401

    pictures = identity(config, available.skipped)
    folder = _folder(config)
    with folder.locked(each_host=config.launch.nnodes > 1):
        _write_config(config, folder)
        if initial:
            initial.write(folder.initial)
        # note: several machines may join a run that has left out something already
        if config.dataset.skip_bad and not folder.skipped.exists():
            write_skipped(folder.skipped, available.skipped)
        write_environment(folder.environment, devices.gpus)
        note_dataset(folder, pictures)
        adopt_estimate(config, folder)
        code = _train(folder, plan, devices, out)
        if code not in (DONE, FAILED) and not folder.metrics.exists() and config.launch.nnodes == 1:
            shutil.rmtree(folder.path)
        return code


def _initial(config: RunConfig, classes: list[str] | None, origins: Mapping[str, str]) -> Pretrained | None:
    """What `model.weights` names, if anything."""
    if config.model.weights is None:
        return None
    from launcher.weights.pretrained import pretrained_weights

    told = COMMAND_LINE in (origins.get("dataset.mean"), origins.get("dataset.std"))
    return pretrained_weights(config, classes, keep_normalization=told)


def resume(folder: RunFolder, words: Sequence[str] = ()) -> int:
    """Go on with a run from its newest checkpoint, on the processes that this machine gives.

    `words` are `key=value` changes, which are kept in the run's config.

    Raises:
        UserError: another process writes to the folder, its data are gone, or a word would change the past.
    """
    before = read(folder.config)
    config = continued(before, words)
    with folder.locked(each_host=config.launch.nnodes > 1):
        devices = decide(config.launch)
        plan = _plan(_counted(config, folder), devices)
        done = folder.newest_step()
        if done is not None and plan.total_steps < done:
            message = f"is shorter than what the run has done, {done / plan.steps_per_epoch:.1f} epochs"
            raise UserError(Problem(message, "epochs", config.epochs))
        if past := [key for key in plan.shortened if not is_free(key)]:
            message = f"is so short that schedule.fit=on would change {', '.join(past)}, and what the run has done"
            raise UserError(Problem(message, "epochs", config.epochs))
        check(plan, {})
        config.logger.check()
        out = console()
        if config != before:
            write(config, folder.config)
        _note_others(folder, plan, devices, out, pictures=_pictures(config, folder))
        return _train(folder, plan, devices, out)


def replay(folder: RunFolder, step: int) -> int:
    """Take one step of a run again, on as many processes as it had, all on this machine; nothing of the run changes.

    Raises:
        UserError: another process writes to the folder, its data are gone, or the machine has fewer GPUs.
    """
    config = read(folder.config)
    ranks = _last_ranks(folder)
    one_machine = replace(config.launch, nnodes=1, max_restarts=0, nproc=ranks or config.launch.nproc)
    config = replace(config, launch=one_machine)
    with folder.locked():
        devices = decide(one_machine)
        plan = _plan(_counted(config, folder), devices)
        if not 0 <= step < plan.total_steps:
            raise UserError(Problem(f"the run has steps 0 to {plan.total_steps - 1}", "step", step))
        from launcher.launch.elastic import Launcher

        _note_others(folder, plan, devices, console())
        os.environ[REPLAY_STEP] = str(step)
        return Launcher(folder.path, devices, one_machine, PlainView(), "launcher.training.replay:work").run()


def _note_others(folder: RunFolder, plan: Plan, devices: Devices, out: Console, *, pictures: str | None = None) -> None:
    """Say it when a run goes on with another number of processes, on the CPU instead of GPUs, or on other pictures."""
    said = list(devices.notes)
    if pictures is not None and note_dataset(folder, pictures):
        said.append(
            "the data set holds other pictures than before, by their names and sizes; the run goes on, but "
            "train compare counts it for neither"
        )
    before = [row["device"] for row in read_metrics(folder.metrics) if row["kind"] == "start"]
    if devices.kind == "cpu" and before[-1:] not in ([], ["cpu"]):
        said.append(f"the run began on {before[-1]} and goes on with the CPU; launch.device=cuda refuses that")
    ranks = _last_ranks(folder)
    if ranks not in (None, plan.world_size):
        said.append(
            f"the run had {ranks} processes and goes on with {plan.world_size}: global batch, data and "
            f"schedule stay the same, the weights will agree up to rounding and batch-norm statistics"
        )
    for note in said:
        out.print(f"note: {note}", style="yellow", markup=False)


def _last_ranks(folder: RunFolder) -> int | None:
    """How many processes the run had when it last trained; None if it never did."""
    sizes = [row["world_size"] for row in read_metrics(folder.metrics) if row["kind"] in ("start", "resume")]
    return sizes[-1] if sizes else None


def _folder(config: RunConfig) -> RunFolder:
    """A new run folder; with several machines, the one of that name on each, also when it starts again."""
    if config.launch.nnodes > 1:
        if config.run_name is None:
            message = "is needed with launch.nnodes above 1, the same on all machines"
            raise UserError(Problem(message, "run_name", None))
        return create_or_join(Path(config.runs), config.run_name)
    name = config.run_name or "-".join(
        [config.recipe or config.model.architecture, config.dataset.name, time.strftime("%m%d")]
    )
    return create(Path(config.runs), name, unique=config.run_name is None)


def _write_config(config: RunConfig, folder: RunFolder) -> None:
    """Write the resolved config, or see that the run that is joined has the same one."""
    if folder.config.exists():
        others = [key for key in changed(read(folder.config), config) if not key.startswith("launch.")]
        if others:
            message = f"{folder.path} is a run with other values of {', '.join(others)}; choose another run_name"
            raise UserError(Problem(message, "run_name", config.run_name))
    write(config, folder.config)


def _plan(config: RunConfig, devices: Devices) -> Plan:
    return plan_for(config, devices.processes * config.launch.nnodes)


def _counted(config: RunConfig, folder: RunFolder) -> RunConfig:
    """The config of a run that goes on, without the pictures that it left out when it began."""
    return inspect_data(config, must_exist=True, skipped=read_skipped(folder.skipped, config.dataset)).config


def _pictures(config: RunConfig, folder: RunFolder) -> str:
    return identity(config, read_skipped(folder.skipped, config.dataset))


def _train(folder: RunFolder, plan: Plan, devices: Devices, out: Console) -> int:
    config = plan.config
    if config.dataset.kind == "shapes" and config.dataloader.name != "synthetic":
        ensure_shapes(config.dataset)
    ranks = f"{config.launch.nnodes} machines with {devices} each" if config.launch.nnodes > 1 else str(devices)
    where = one_line(str(folder.path))
    length = f"{plan.epochs} epoch{'s' * (plan.epochs > 1)} of {plan.steps_per_epoch:,} steps"
    out.print(f"{where}: {length} on {ranks}", markup=False, soft_wrap=True)
    from launcher.launch.elastic import Launcher

    view = ProgressView(folder.metrics, config.task, total_steps=plan.total_steps, epochs=plan.epochs, console=out)
    try:
        folder.failure.unlink(missing_ok=True)
        code = Launcher(folder.path, devices, config.launch, view).run()
    except UserError as error:
        # note: of a folder that cannot be written to, the terminal alone says it
        with suppress(OSError):
            folder.failure.write_text(f"{error}\n")
        raise
    if code != FAILED and folder.metrics.exists():
        from launcher.records.curve import draw_curve

        title = [config.recipe or "no recipe", config.model.architecture, config.dataset.name]
        draw_curve(folder, config.task, " \u00b7 ".join(title))
        out.print(summary_table(folder, config))
    if code not in (DONE, FAILED):
        if folder.newest_step() is not None:
            told = f"go on from the last save by: train resume {where}"
        elif folder.metrics.exists():
            told = f"nothing was saved yet; begin anew by: train resume {where}"
        else:
            told = "before the first step: nothing is kept"
        out.print(f"stopped; {told}", markup=False, soft_wrap=True)
    return code
