"""Measure a config in the processes of a real run, in a temporary folder."""

import json
import math
import sys
import tempfile
import time
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from launcher.config.compose import Composed
from launcher.config.resolved import write
from launcher.config.schema import RunConfig
from launcher.console import console, progress_bars
from launcher.data.inspection import Inspection
from launcher.data.loaders.synthetic import SyntheticLoader
from launcher.data.unreadable import write_skipped
from launcher.errors import Problem, UserError
from launcher.launch.auto_batch import FEWEST_IMAGES
from launcher.launch.devices import Devices
from launcher.launch.files_first import check_written
from launcher.launch.network import write_teacher
from launcher.launch.prepare import Measures, Prepared, prepare, write_images
from launcher.measure.estimate import REQUEST, RESULT, Estimate, Measurement, estimate, occasions
from launcher.plan.plan import plan_for
from launcher.records.progress import TerminalView
from launcher.records.run_folder import RunFolder
from launcher.stopping import StopRequest, StopRequested

# `stop.minutes` measures each part for a hundredth of it, up to as many seconds.
_MOST_SECONDS = 1.0

T = TypeVar("T")


def prepare_here(composed: Composed, seen: Inspection | None = None) -> Prepared:
    """Prepare a run on this machine; draw the built-in images if they are missing, and print notes to stderr.

    Raises UserError if a value cannot work here, and MachineError if torch cannot use the visible GPUs.
    """
    nodes = composed.config.launch.nnodes
    if nodes > 1:
        raise UserError(Problem("measurements support one node; set launch.nnodes=1", "launch.nnodes", nodes))
    with progress_bars(console(sys.stderr)) as (_, report):
        prepared = prepare(composed, seen=seen, report=report)
    check_written(composed.config)
    for note in prepared.devices.notes:
        print(f"note: {note}", file=sys.stderr)
    return prepared


def measure_steps(prepared: Prepared, seconds: float) -> Measurement:
    """Measure every kind of step, loading and evaluation of a run, for `seconds` each."""
    return measure(prepared, "launcher.measure.probes:profile", seconds, Measurement)


def measure_batch(config: RunConfig, devices: Devices) -> int:
    """Return the global batch for which each GPU's memory holds its images, measured on the first GPU.

    config: with counted images.

    Raises UserError if no batch fits.
    """
    assert config.dataset.train_samples is not None
    of_one_gpu = replace(config.dataset, train_samples=config.dataset.train_samples // devices.processes)
    loader, launch = SyntheticLoader("synthetic", batches=1), replace(config.launch, nproc=1)
    alone = replace(config, batch_size=FEWEST_IMAGES, dataset=of_one_gpu, dataloader=loader, launch=launch)
    one_gpu = Prepared(plan_for(alone, 1), replace(devices, processes=1))
    images = measure(one_gpu, "launcher.measure.batch_size:search", 0, int)
    if not images:
        size = f"{FEWEST_IMAGES} images of {one_gpu.plan.full_view} px do not fit in GPU memory"
        raise UserError(Problem(f"{size}; use a smaller model or image.train_size", "batch_size", "auto"))
    return images * devices.processes


@dataclass(frozen=True)
class _Lengths:
    """The minutes of a run by its epochs, by the slowest round of measured steps, evaluations and checkpoints."""

    prepared: Prepared
    whole: Estimate

    def dilate(self, epochs: int) -> float:
        """Return the `schedule.dilate` of so many epochs."""
        config = self.prepared.plan.config
        return config.schedule.dilate if epochs == self.most else float(f"{epochs / config.epochs:.6g}")

    def minutes(self, epochs: int) -> float:
        """Return the minutes of so many epochs."""
        plan, whole = self.prepared.plan, self.whole
        config = replace(plan.config, schedule=replace(plan.config.schedule, dilate=self.dilate(epochs)))
        plan = replace(plan, config=config)
        parts = (
            (whole.training, epochs / self.most),
            (whole.evaluation, occasions(plan, config.eval_every) / whole.evaluations),
            (whole.saving, occasions(plan, config.checkpoint.every) / whole.checkpoints),
        )
        return sum(span.high * part for span, part in parts) / 60

    @property
    def most(self) -> int:
        return self.prepared.plan.epochs


def config_in_time(prepared: Prepared) -> RunConfig:
    """Return the config with the most epochs, up to those of the plan, that end within `stop.minutes`.

    Raises UserError if an epoch takes longer.
    """
    config = prepared.plan.config
    minutes = config.stop.minutes
    assert minutes is not None
    whole = estimate(prepared.plan, measure_steps(prepared, min(_MOST_SECONDS, 60 * minutes / 100)))
    lengths = _Lengths(prepared, whole)
    fitting = bisect_right(range(1, lengths.most + 1), minutes, key=lengths.minutes)
    if not fitting:
        least = math.ceil(round(10 * lengths.minutes(1), 6)) / 10
        raise UserError(Problem(f"is too short for an epoch; set at least {least:g}", "stop.minutes", f"{minutes:g}"))
    return replace(config, schedule=replace(config.schedule, dilate=lengths.dilate(fitting)))


MEASURES = Measures(measure_batch, config_in_time)


def measure(prepared: Prepared, target: str, seconds: float, result: type[T]) -> T:
    """Launch a target in a folder with the config and the request, and return its result.

    Raises UserError if a rank raised one or the measurement failed, and StopRequested if it was stopped.
    """
    from launcher.launch.elastic import Launcher

    config = prepared.plan.config
    runs = Path(config.runs)
    runs.mkdir(parents=True, exist_ok=True)
    # note: in the folder of runs, to measure checkpoints on its disk
    with tempfile.TemporaryDirectory(prefix=".measuring-", dir=runs) as scratch:
        folder = RunFolder(Path(scratch))
        write(config, folder.config)
        if config.dataset.skip_bad:
            write_skipped(folder.skipped, prepared.skipped)
        write_images(prepared, folder)
        if prepared.pretrained:
            prepared.pretrained.write(folder.initial)
        write_teacher(config, folder)
        (folder.path / REQUEST).write_text(json.dumps([seconds, time.monotonic()]))
        once = replace(config.launch, max_restarts=0)
        view, request = TerminalView(console(sys.stderr)), StopRequest()
        code = Launcher(folder.path, prepared.devices, once, view, target, request=request).run()
        if request.number is not None:
            raise StopRequested(request.number)
        if code != 0:
            raise UserError(f"the measurement failed with exit code {code}; see the errors above")
        return TypeAdapter(result).validate_json((folder.path / RESULT).read_bytes())
