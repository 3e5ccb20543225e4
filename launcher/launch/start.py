"""Train a composed config: checks, run folder, ranks, summary.

The import of torch is slow, so it follows all checks.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from rich.console import Console

from launcher.config import code
from launcher.config.compose import Composed
from launcher.config.resolved import changed, continued, is_free, read, with_absolute_paths, write
from launcher.config.schema import RunConfig
from launcher.console import console, plain, progress_bars
from launcher.counts import count_of
from launcher.data.identity import identity
from launcher.data.inspection import Inspection
from launcher.data.unreadable import read_skipped, write_skipped
from launcher.errors import DONE, FAILED, Problem, UserError, one_line
from launcher.files.disk import is_there
from launcher.launch.changes import check_checkpoints, print_changes
from launcher.launch.files_first import write_first
from launcher.launch.in_process import InThisProcess
from launcher.launch.network import write_teacher
from launcher.launch.prepare import Measures, Prepared, Resumed, prepare, write_images
from launcher.plan.epochs import dilated_epochs
from launcher.plan.plan import Plan
from launcher.publish.run_page import write_page_or_warn
from launcher.records.metrics import is_finished, read_last
from launcher.records.mirror import mirror_of
from launcher.records.mirrored import check_mirrored, mirror_url, mirrored
from launcher.records.origins import note_resume, write_origins
from launcher.records.progress import ProgressView
from launcher.records.run_folder import RunFolder, check_new, clear, create, note_dataset
from launcher.records.summary import summary_table
from launcher.records.writer import check_order, check_writer, write_writer
from launcher.stopping import StopRequest, stop_requests


class Ended(NamedTuple):
    """The folder of a run, and the exit code of the command that trained it."""

    folder: RunFolder
    code: int


def start(
    composed: Composed,
    measures: Measures | None = None,
    launcher: type[InThisProcess] | None = None,
    seen: Inspection | None = None,
) -> Ended:
    """Train a new run; `measures` and `seen` are those of `prepare`, `launcher` runs its ranks instead of elastic.

    Raises UserError if a value cannot work, before any file is written.
    """
    out = console()
    with progress_bars(out) as (_, report):
        is_new = composed.config.launch.nnodes == 1
        prepared = prepare(composed, seen=seen, is_new=is_new, measures=measures, report=report)
    config = prepared.plan.config
    if (restored := _from_mirror(config, out)) is not None:
        return resume(restored, launcher=launcher, fetched_from=mirror_url(config, restored.path.name))
    for note in few_of(prepared.notes):
        out.print(f"note: {note}", style="yellow", markup=False)
    images = identity(config, prepared.skipped, prepared.images)
    with stop_requests() as request:
        folder = _folder(config)
        with folder.locked(nodes=config.launch.nnodes, nodes_here=config.launch.nodes_here):
            if folder.exists() and config.launch.nnodes == 1:
                check_new(Path(config.runs), folder.path.name)
            elif folder.exists():
                check_writer(folder)
                _check_same(config, folder)
            elif config.launch.nnodes == 1:
                clear(folder)
            if config.launch.nnodes == 1 or not is_there(folder.writer):
                write_writer(folder)
            check_writer(folder)
            code.copy(folder.code)
            if prepared.pretrained:
                prepared.pretrained.write(folder.initial)
            # note: another node of the run may have written it
            if config.dataset.skip_bad and not is_there(folder.skipped):
                write_skipped(folder.skipped, prepared.skipped)
            note_dataset(folder, images, prepared.splits)
            write_origins(folder, composed.origins)
            # note: last, because a folder with a config can be resumed
            write(config, folder.config)
            ended = _train(folder, prepared, out, request, launcher)
            if ended.code not in (DONE, FAILED) and not is_there(folder.metrics) and config.launch.nnodes == 1:
                shutil.rmtree(folder.path)
            return ended


def _from_mirror(config: RunConfig, out: Console) -> RunFolder | None:
    """Fetch the run from its mirror if it is there and not on this disk; None if it is new.

    Raises UserError if the mirror cannot be used, or the run there has other values.
    """
    if config.run_name is None:
        return None
    mirror = mirror_of(config, config.run_name)
    if mirror is None or not mirror.exists or config.launch.nnodes > 1:
        return None
    folder = mirror.fetch(Path(config.runs) / config.run_name)
    _check_same(config, folder)
    out.print(f"{one_line(str(folder.path))} is fetched from {mirror.url}", markup=False, soft_wrap=True)
    return folder


def resume(
    folder: RunFolder,
    words: Sequence[str] = (),
    launcher: type[InThisProcess] | None = None,
    fetched_from: str | None = None,
) -> Ended:
    """Resume a run from its newest checkpoint on the devices of this machine.

    `words` are `key=value` changes, which the run's config keeps. fetched_from: its mirror.

    Raises UserError if another process uses the folder, the images are missing, or a word would change completed steps.
    """
    check_writer(folder)
    before = read(folder.config, to_resume=True)
    check_order(folder, before.dataset.name)
    config, out = with_absolute_paths(continued(before, words), resumed=True), console()
    with folder.locked(nodes=config.launch.nnodes, nodes_here=config.launch.nodes_here):
        check_mirrored(folder, config, words, fetched_from)
        check_checkpoints(folder)
        if config == before and (longer := _how_to_train_longer(folder, config)):
            out.print(summary_table(folder, config))
            out.print(longer, markup=False, soft_wrap=True)
            return Ended(folder, DONE)
        with progress_bars(out) as (_, report):
            write_first(config, (), report)
        skipped = read_skipped(folder.skipped, config.dataset)
        prepared = prepare(Composed(config, {}), resumed=Resumed(skipped, partial(_refuse, folder, before)))
        mirror_of(config, folder.path.name)
        if config != before:
            note_resume(folder, changed(before, config))
            write(config, folder.config)
        print_changes(folder, prepared, out, images=identity(config, skipped, prepared.images))
        with stop_requests() as request:
            return _train(folder, prepared, out, request, launcher)


def _how_to_train_longer(folder: RunFolder, config: RunConfig) -> str | None:
    """Return the command that continues a finished run; None for a run that is not finished."""
    rows = read_last(folder.metrics)
    ends = [row["step"] for row in rows if row["kind"] == "end" and row["finished"]]
    if ends[-1:] != [folder.newest_step()]:
        return None
    done = next((row["epoch"] for row in reversed(rows) if row["kind"] == "eval"), 0.0)
    word, note = f"epochs={2 * config.epochs}", "; train compare does not count a run whose length changed"
    if done < dilated_epochs(config.epochs, config.schedule.dilate):
        ended_by = next(row["ended_by"] for row in reversed(rows) if row["kind"] == "end" and row["finished"])
        word, note = f"{ended_by}=null", ""
    where = one_line(str(folder.path))
    longer = f"train resume {quote(where)} {word}"
    return f"{where} is finished after {count_of(done, 'epoch')}; to train longer: {longer}{note}"


def _refuse(folder: RunFolder, before: RunConfig, plan: Plan) -> None:
    """Raise a UserError if a plan has other images, ends before the newest checkpoint, or is too short for the run."""
    dataset = plan.config.dataset
    if before.dataset.train_samples not in (None, plan.train_samples):
        where, had = dataset.path or dataset.name, count_of(before.dataset.train_samples, plan.config.task.sample)
        message = f"{where} has {plan.train_samples:,} for training, and the run {had}; restore them"
        raise UserError(Problem(message, "dataset.train_samples", before.dataset.train_samples))
    done, epochs = folder.newest_step(), plan.config.epochs
    if done is not None and plan.total_steps < done:
        message = f"must be at least {done / plan.steps_per_epoch:.1f}, which the run has completed"
        raise UserError(Problem(message, "epochs", epochs))
    if fixed := [key for key in plan.shortened if not is_free(key)]:
        message = f"is too short: schedule.fit=on would change {', '.join(fixed)} of completed steps; set more epochs"
        raise UserError(Problem(message, "epochs", epochs))


def _folder(config: RunConfig) -> RunFolder:
    """Create a run folder; several nodes, and their restarts, share the one of `run_name`."""
    if config.launch.nnodes > 1:
        assert config.run_name is not None
        return create(Path(config.runs), config.run_name, join=True)
    words = config.recipe or config.model.architecture, config.dataset.title, time.strftime("%m%d")
    return create(Path(config.runs), config.run_name or "-".join(words), unique=config.run_name is None)


def _check_same(config: RunConfig, folder: RunFolder) -> None:
    """Check that the run to join has the same config."""
    # note: a run with stop.minutes has the length that was measured at its start
    measured = ["schedule.dilate"] if config.stop.minutes is not None else []
    others = [key for key in changed(read(folder.config), config) if not (key.startswith("launch.") or key in measured)]
    if others:
        message = f"{folder.path} is a run with other values of {', '.join(others)}; set another run_name"
        raise UserError(Problem(message, "run_name", config.run_name))


def _train(
    folder: RunFolder,
    prepared: Prepared,
    out: Console,
    request: StopRequest,
    launcher: type[InThisProcess] | None,
) -> Ended:
    """Run the ranks and print the summary."""
    plan, devices, config = prepared.plan, prepared.devices, prepared.plan.config
    write_images(prepared, folder)
    # note: the names of millions of images take memory
    prepared = replace(prepared, images=())
    nodes = config.launch.nnodes
    several = f"{count_of(nodes, 'node')} with {devices} each; that of rank 0 shows the progress"
    ranks = several if nodes > 1 else str(devices)
    where, log = one_line(str(folder.path)), folder.logs / "rank-0.log"
    length = f"{count_of(plan.epochs, 'epoch')} of {count_of(plan.steps_per_epoch, 'step')}"
    view = ProgressView(
        folder.metrics, config.task, total_steps=plan.total_steps, epochs=plan.epochs, console=out, log=log
    )
    for note in prepared.notes:
        view.log(f"note: {note}")
    for line in (f"{where}: {length} on {ranks}", *mirrored(folder, config)):
        view.print(line)
    from launcher.launch.elastic import Launcher
    from launcher.launch.rendezvous import who_may_connect

    if nodes > 1:
        view.print(f"note: {who_may_connect(config.launch)}")
    was_finished = is_finished(folder.metrics)
    try:
        folder.failure.unlink(missing_ok=True)
        write_teacher(config, folder)
        code = (launcher or Launcher)(folder.path, devices, config.launch, view, request=request).run()
    except UserError as error:
        # note: the folder may not be writable
        with suppress(OSError):
            folder.failure.write_text(f"{error}\n", encoding="utf-8", errors="backslashreplace")
        view.log(f"error: {error}")
        raise
    if code != FAILED and is_finished(folder.metrics) and not was_finished:
        code = DONE  # note: a stop signal may arrive after the last evaluation
    if code != FAILED and view.shown and folder.metrics.exists():
        write_page_or_warn(folder, view.print)
        table = summary_table(folder, config)
        out.print(table)
        view.log(plain(table))
    if code not in (DONE, FAILED):
        view.print(f"stopped; {_how_to_continue(folder, nodes)}")
    return Ended(folder, code)


def few_of(notes: Sequence[str]) -> list[str]:
    """Return the notes to print before a run: three, of more than these the first two and the number of the others."""
    more = f"{len(notes) - 2} more, which `train plan` prints with the words of this run, and logs/rank-0.log has"
    return [*notes] if len(notes) <= 3 else [*notes[:2], more]


def _how_to_continue(folder: RunFolder, nodes: int) -> str:
    if nodes > 1:
        return "to resume, type the same command on each node"
    where = quote(one_line(str(folder.path)))
    if folder.newest_step() is not None:
        return f"to resume from the newest checkpoint, type: train resume {where}"
    if folder.metrics.exists():
        return f"no checkpoint yet; to start from the beginning, type: train resume {where}"
    return "no step was completed; to start again, type the same command"
