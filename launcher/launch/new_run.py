"""Prepare a new run for `train`, `train plan` and `train submit`, which refuse the same things."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from launcher import paths
from launcher.config.compose import Composed
from launcher.config.schema import RunConfig
from launcher.config.yaml_file import read_mapping
from launcher.counts import count_of
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, Problems
from launcher.launch.devices import Devices
from launcher.launch.files_first import note_on_files, write_first
from launcher.launch.prepare_run import Measures, Prepared, prepare_run
from launcher.plan.checks import check, notes
from launcher.plan.plan import plan_for
from launcher.records.run_folder import check_new
from launcher.training.mirror import check_protocol


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
    prepared = replace(prepared, notes=[*note_on_files(composed, prepared.plan), *prepared.notes])
    if measures is None or config.stop.minutes is None:
        return prepared
    native = config.dataset.native_size
    if composed.may_shrink:
        prepared = _shrunk(composed, prepared, measures, report)
    return _in_time(prepared, composed.origins, measures.in_time(prepared, composed.ends), native)


def _shrunk(composed: Composed, prepared: Prepared, measures: Measures, report: Report) -> Prepared:
    """Prepare a run on a CPU with smaller images, if otherwise fewer epochs fit in time than `recipe=auto` trains."""
    config, least = prepared.plan.config, read_mapping(paths.CONF / "auto.yaml")["least_size"]
    if prepared.devices.kind != "cpu" or "image" not in config.task.needs or config.dataset.native_size <= least:
        return prepared

    def at(size: int) -> Prepared:
        dataset = replace(composed.config.dataset, native_size=size)
        of_size = replace(composed, config=replace(composed.config, dataset=dataset))
        return prepare_run(of_size, devices=prepared.devices, with_weights=True, measures=measures, report=report)

    # note: steps of large images may take as long as the run
    size = measures.size(smallest := at(least), composed.ends)
    if size >= config.dataset.native_size:
        return prepared
    return smallest if size == least else at(size)


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


def _in_time(prepared: Prepared, origins: Mapping[str, str], config: RunConfig, native: int) -> Prepared:
    """Return a prepared run of the measured length, of images that had `native` pixels before they became smaller.

    Raises UserError if it is too short for its values.
    """
    requested = prepared.plan
    plan = plan_for(config, requested.world_size)
    check(plan, origins, prepared.devices.kind)
    fit = f"{plan.epochs} of {count_of(requested.epochs, 'epoch')} fit by the time of measured steps"
    size, shrinks = f"dataset.native_size={config.dataset.native_size}", config.dataset.native_size < native
    smaller = f"images of {native} px become smaller, so that more epochs fit: " if shrinks else ""
    note = f"stop.minutes={config.stop.minutes:g}: {smaller}{fit}; to repeat: "
    note += f"{size} " * shrinks + f"schedule.dilate={plan.config.schedule.dilate}"
    fewer = [*_of_fewer_epochs(prepared, plan.epochs, native)] if shrinks else []
    if choices := [*_of_more_epochs(prepared, plan.epochs), *fewer]:
        known = "no top-1 of them is known" if shrinks else "may have a higher top-1"
        note += f"; {' or '.join(choices)} would take as long, by its pixels, and {known}"
    others = [one for one in prepared.notes if one not in {*notes(requested)}]
    return replace(prepared, plan=plan, notes=[note, *others, *notes(plan)])


def _of_more_epochs(prepared: Prepared, fitting: int) -> Iterator[str]:
    """Yield smaller image sizes of which more epochs fit, up to the fewest that `recipe=auto` trains."""
    fewest = fewest_epochs()
    for epochs in (fewest // 2, fewest):
        size = size_in(prepared, fitting / epochs) if fitting < epochs <= prepared.plan.epochs else None
        if size:
            yield _choice(epochs, size)


def _of_fewer_epochs(prepared: Prepared, fitting: int, native: int) -> Iterator[str]:
    """Yield the larger image size of which half of the epochs fit, at most `native`."""
    if (epochs := fitting // 2) and (size := size_in(prepared, fitting / epochs)):
        yield _choice(epochs, min(size, native))


def _choice(epochs: int, size: int) -> str:
    return f"{count_of(epochs, 'epoch')} of dataset.native_size={size}"


def size_in(prepared: Prepared, part: float) -> int | None:
    """Return the image size of which an epoch takes a part of its time on a CPU; None if it is too small."""
    config, limits = prepared.plan.config, read_mapping(paths.CONF / "auto.yaml")
    # note: a step on a CPU takes as long as it has pixels
    size = (
        int(config.dataset.native_size * math.sqrt(max(0.0, part))) // limits["size_multiple"] * limits["size_multiple"]
    )
    is_known = prepared.devices.kind == "cpu" and "image" in config.task.needs
    return size if is_known and size >= limits["least_size"] else None


def fewest_epochs() -> int:
    """Return the fewest epochs that `recipe=auto` trains."""
    fewest: int = read_mapping(paths.CONF / "auto.yaml")["epochs"][0]
    return fewest


def left_to_the_start(prepared: Prepared, *, packages: bool = True, may_shrink: bool = False) -> Iterator[str]:
    """Yield what `prepare_new` could not check here, so that only the start of the run does.

    may_shrink: its images may become smaller.
    """
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
        size = " and their image size" if may_shrink and prepared.devices.kind == "cpu" else ""
        yield f"the epochs that fit in stop.minutes={config.stop.minutes:g}{size}"
    if config.checkpoint.mirror is not None:
        yield f"checkpoint.mirror={config.checkpoint.mirror}"
    if launch.nnodes > 1:
        missing = [key for key, value in (("run_name", config.run_name), ("launch.rdzv", launch.rdzv)) if value is None]
        how = f" by {' and '.join(missing)}" if missing else ""
        yield f"the connection of {count_of(launch.nnodes, 'node')}{how}"
    if prepared.devices.kind == "cuda":
        required = [f"{key}=require" for key in ("compile", "cuda_graphs") if getattr(config, key) == "require"]
        yield " and ".join(["the GPUs, their memory", *required])
