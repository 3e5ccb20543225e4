"""Measure a config on the processes that a run of it would get, in a folder that is gone afterwards."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from launcher.config.compose import Composed
from launcher.config.models import TorchvisionModel
from launcher.config.resolved import write
from launcher.console import console, progress_bars
from launcher.data.inspect import inspect_data
from launcher.data.shapes import ensure_shapes
from launcher.data.unreadable import write_skipped
from launcher.errors import Problem, UserError
from launcher.launch.devices import Devices, decide, with_precision
from launcher.measure.measurement import ANSWER, REQUEST, Measurement, MeasureRequest
from launcher.plan.checks import check
from launcher.plan.plan import Plan, plan_for
from launcher.records.folder import RunFolder

T = TypeVar("T")


def real_plan(composed: Composed) -> tuple[Plan, Devices]:
    """The checked plan on this machine's devices and data; the built-in pictures are drawn if need be.

    Raises:
        UserError: something cannot work here.
        MachineError: GPUs are there, and torch cannot use them.
    """
    nodes = composed.config.launch.nnodes
    if nodes > 1:
        raise UserError(
            Problem("only this machine can be measured; measure with launch.nnodes=1", "launch.nnodes", nodes)
        )
    with progress_bars(console(sys.stderr)) as (_, report):
        config = inspect_data(composed.config, must_exist=True, report=report).config
    devices = decide(config.launch)
    for note in devices.notes:
        _Stderr().print(f"note: {note}")
    plan = plan_for(config, devices.processes)
    check(plan, composed.origins)
    if not isinstance(plan.config.model, TorchvisionModel):
        from launcher.training.model_check import check_model  # note: seconds, for torch and timm

        check_model(plan, composed.origins)
    plan = with_precision(plan, devices)
    if config.dataset.kind == "shapes" and config.dataloader.name != "synthetic":
        ensure_shapes(config.dataset)
    return plan, devices


def measure_steps(plan: Plan, devices: Devices, seconds: float) -> Measurement:
    """Measure every kind of step, loading and evaluation of a run, for so many seconds each."""
    return ask(plan, devices, "launcher.measure.probes:work", seconds, Measurement)


def ask(plan: Plan, devices: Devices, target: str, seconds: float, answer: type[T]) -> T:
    """Launch a target on a folder that holds the plan's config and the request, and read its answer.

    Raises:
        UserError: a rank ended with one, or the measurement was stopped or failed.
    """
    from launcher.launch.elastic import Launcher

    runs = Path(plan.config.runs)
    runs.mkdir(parents=True, exist_ok=True)
    # note: beside the runs, so that saving is measured on their disk
    with tempfile.TemporaryDirectory(prefix=".measuring-", dir=runs) as scratch:
        folder = RunFolder(Path(scratch))
        write(plan.config, folder.config)
        if plan.config.dataset.skip_bad:
            write_skipped(folder.skipped, inspect_data(plan.config, must_exist=True).skipped)
        (folder.path / REQUEST).write_text(json.dumps(asdict(MeasureRequest(seconds, time.time()))))
        once = replace(plan.config.launch, max_restarts=0)
        code = Launcher(folder.path, devices, once, _Stderr(), target).run()
        if code != 0:
            raise UserError(f"the measurement ended early, with exit code {code}")
        return TypeAdapter(answer).validate_json((folder.path / ANSWER).read_bytes())


class _Stderr:
    """What the ranks say, beside what the command prints."""

    def poll(self) -> None: ...

    def print(self, line: str) -> None:
        print(line, file=sys.stderr)

    def close(self) -> None: ...
