"""Prepare a new run for `train`, `train plan` and `train submit`, which refuse the same things."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launcher.config.compose import Composed
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, Problems
from launcher.launch.devices import Devices
from launcher.launch.files_first import note_on_files, write_first
from launcher.launch.prepare_run import Measures, Prepared, prepare_run
from launcher.plan.checks import check, notes
from launcher.plan.plan import plan_for
from launcher.records.mirror import check_protocol
from launcher.records.run_folder import check_new


def prepare_new(
    composed: Composed,
    *,
    devices: Devices | None = None,
    must_exist: bool = True,
    packages: bool = True,
    runs: bool = True,
    with_weights: bool = True,
    measures: Measures | None = None,
    report: Report = quiet,
) -> Prepared:
    """Prepare a new run, and refuse all that its start refuses and that needs no GPU, network or decoding.

    packages: whether the run has the packages of this machine. runs: whether its folder must be new on this machine.
    measures: with these the run starts, after the FFCV files that it reads are written. The others are those of
    `prepare_run`.

    Raises UserError with what cannot work, first what is known without the images, before any file is written.
    """
    config = composed.config
    # note: before the images are listed, which may take minutes
    _problems(config, packages=packages, runs=runs).settle()
    prepared = prepare_run(
        composed,
        devices=devices,
        must_exist=must_exist,
        packages=packages,
        with_weights=with_weights,
        measures=measures,
        report=report,
    )
    if measures is not None and write_first(prepared.plan.config, prepared.images, report):
        batch = prepared.plan.batch_size
        prepared = prepare_run(
            replace(composed, inspected=None),
            devices=prepared.devices,
            with_weights=with_weights,
            measures=measures._replace(batch=lambda *_: batch),
            report=report,
        )
    prepared = prepared if measures is None else measures.steps(prepared)
    prepared = replace(prepared, notes=[*note_on_files(composed, prepared.plan), *prepared.notes])
    if measures is None or config.stop.minutes is None:
        return prepared
    return _in_time(prepared, composed.origins, measures.in_time(prepared))


def _problems(config: RunConfig, *, packages: bool, runs: bool) -> Problems:
    """Return what a new run cannot have, by its config and the run folders of this machine."""
    problems = Problems()
    if runs and config.run_name is not None:
        with problems.collected():
            check_new(Path(config.runs), config.run_name)
    if config.checkpoint.mirror is not None and config.run_name is None:
        message = "needs run_name=NAME, which becomes the name of the run in the bucket"
        problems.append(Problem(message, "checkpoint.mirror", config.checkpoint.mirror))
    if config.stop.minutes is not None and config.launch.nnodes > 1:
        message = "is measured on one node; set epochs, or launch.nnodes=1"
        problems.append(Problem(message, "stop.minutes", config.stop.minutes))
    if packages:
        with problems.collected():
            config.logger.check()
        if config.checkpoint.mirror is not None:
            with problems.collected():
                check_protocol(config.checkpoint.mirror)
    return problems


def _in_time(prepared: Prepared, origins: Mapping[str, str], config: RunConfig) -> Prepared:
    """Return a prepared run of the measured length.

    Raises UserError if it is too short for its values.
    """
    requested = prepared.plan
    plan = plan_for(config, requested.world_size)
    check(plan, origins, prepared.devices.kind)
    fit = f"{plan.epochs} of {count_of(requested.epochs, 'epoch')} fit by the time of measured steps"
    note = f"stop.minutes={config.stop.minutes:g}: {fit}; to repeat: schedule.dilate={plan.config.schedule.dilate}"
    others = [one for one in prepared.notes if one not in {*notes(requested)}]
    return replace(prepared, plan=plan, notes=[note, *others, *notes(plan)])


def left_to_the_start(prepared: Prepared, *, packages: bool = True) -> Iterator[str]:
    """Yield what `prepare_new` could not check here, so that only the start of the run does."""
    config, launch = prepared.plan.config, prepared.plan.config.launch
    if not prepared.images_seen:
        yield f"the images, dataset.path={config.dataset.path}"
    test_path = config.dataset.test_path
    if test_path is not None and not (prepared.images_seen and Path(test_path).exists()):
        yield f"the images, dataset.test_path={test_path}"
    if not packages:
        yield "the packages of the logger and the decoder"
    if config.model.downloads:
        yield f"the download of model.weights={config.model.weights}"
    if config.stop.minutes is not None:
        yield f"the epochs that fit in stop.minutes={config.stop.minutes:g}"
    if config.checkpoint.mirror is not None:
        yield f"checkpoint.mirror={config.checkpoint.mirror}"
    if launch.nnodes > 1:
        missing = [key for key, value in (("run_name", config.run_name), ("launch.rdzv", launch.rdzv)) if value is None]
        how = f" by {' and '.join(missing)}" if missing else ""
        yield f"the connection of {count_of(launch.nnodes, 'node')}{how}"
    if prepared.devices.kind == "cuda":
        required = [f"{key}=require" for key in ("compile", "cuda_graphs") if getattr(config, key) == "require"]
        yield " and ".join(["the GPUs, their memory", *required])
