"""Measure a config on the processes that a run of it would get, in a folder that is gone afterwards."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from launcher.config.compose import Composed
from launcher.config.resolved import write
from launcher.console import console, progress_bars
from launcher.data.shapes import ensure_folder
from launcher.data.unreadable import write_skipped
from launcher.errors import Problem, UserError
from launcher.launch.prepare_run import Prepared, prepare_run
from launcher.measure.estimate import REQUEST, RESULT, Measurement
from launcher.records.folder import RunFolder
from launcher.records.progress import TerminalView

T = TypeVar("T")


def prepare_here(composed: Composed) -> Prepared:
    """Prepare a run on this machine alone; the built-in images are drawn if need be, notes go to stderr.

    Raises:
        UserError: something cannot work here.
        MachineError: GPUs are there, and torch cannot use them.
    """
    nodes = composed.config.launch.nnodes
    if nodes > 1:
        raise UserError(Problem("train estimate measures one node only; set launch.nnodes=1", "launch.nnodes", nodes))
    with progress_bars(console(sys.stderr)) as (_, report):
        prepared = prepare_run(composed, report=report)
    for note in prepared.devices.notes:
        print(f"note: {note}", file=sys.stderr)
    if composed.config.dataloader.name != "synthetic":
        ensure_folder(prepared.plan.config.dataset)
    return prepared


def measure_steps(prepared: Prepared, seconds: float) -> Measurement:
    """Measure every kind of step, loading and evaluation of a run, for so many seconds each."""
    return measure(prepared, "launcher.measure.probes:work", seconds, Measurement)


def measure(prepared: Prepared, target: str, seconds: float, result: type[T]) -> T:
    """Launch a target on a folder that holds the plan's config and the request, and read its answer.

    Raises:
        UserError: a rank ended with one, or the measurement was stopped or failed.
    """
    from launcher.launch.elastic import Launcher

    config = prepared.plan.config
    runs = Path(config.runs)
    runs.mkdir(parents=True, exist_ok=True)
    # note: beside the runs, so that saving is measured on their disk
    with tempfile.TemporaryDirectory(prefix=".measuring-", dir=runs) as scratch:
        folder = RunFolder(Path(scratch))
        write(config, folder.config)
        if config.dataset.skip_bad:
            write_skipped(folder.skipped, prepared.skipped)
        (folder.path / REQUEST).write_text(json.dumps([seconds, time.time()]))
        once = replace(config.launch, max_restarts=0)
        code = Launcher(folder.path, prepared.devices, once, TerminalView(console(sys.stderr)), target).run()
        if code != 0:
            raise UserError(f"the measurement failed with exit code {code}; see the messages above")
        return TypeAdapter(result).validate_json((folder.path / RESULT).read_bytes())
