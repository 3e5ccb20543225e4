"""Prepare a run, the same for all verbs: what one refuses, all refuse before any file is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.config.compose import Composed
from launcher.config.gpus import check_gpu
from launcher.config.layers import COMMAND_LINE
from launcher.config.resolved import with_absolute_paths
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.builtin import ensure_folder
from launcher.data.index import Images, write_index
from launcher.data.inspection import Inspection, inspect_data
from launcher.data.jpeg import with_decoder
from launcher.data.loaders.base import source_of
from launcher.data.workers import Report, quiet
from launcher.errors import Problem, Problems
from launcher.launch.auto_batch import note_on_batch, with_batch
from launcher.launch.devices import Devices, decide, planned, with_precision
from launcher.launch.files_first import note_on_files, write_first
from launcher.launch.memory import memory_notes
from launcher.launch.network import with_checked_network, with_weights
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan, plan_for
from launcher.records.mirror import check_protocol
from launcher.records.run_folder import RunFolder, check_new

if TYPE_CHECKING:
    from launcher.weights.pretrained import Pretrained


class Measures(NamedTuple):
    """What is measured before a run is written.

    batch: for `batch_size=auto`, the largest batch of a config with counted images. in_time: the config with which a
    prepared run ends within `stop.minutes`. Both raise UserError if there is none. steps: the run with `auto` of
    compile and cuda_graphs replaced.
    """

    batch: Callable[[RunConfig, Devices], int]
    in_time: Callable[[Prepared], RunConfig]
    steps: Callable[[Prepared], Prepared] = lambda prepared: prepared


class Resumed(NamedTuple):
    """An existing run: the images that it skips, and what raises UserError if it cannot continue with a plan."""

    skipped: Collection[str]
    refuse: Callable[[Plan], None]


@dataclass(frozen=True)
class Prepared:
    """A run that can start. The config of `plan` is final: image counts, precision and normalization are set.

    `skipped` maps unreadable images to the reasons; `notes` are messages for the user. `images` are those of training,
    validation and test if they are listed, and `splits` has what was seen, taken and dropped for each split.
    `images_seen` is false if counts replace missing images, `packages_seen` if the run has those of another machine.
    """

    plan: Plan
    devices: Devices
    skipped: dict[str, str] = field(default_factory=dict)
    pretrained: Pretrained | None = None
    notes: Sequence[str] = ()
    splits: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[Images] = ()
    images_seen: bool = True
    packages_seen: bool = True


def prepare(
    composed: Composed,
    *,
    devices: Devices | None = None,
    seen: Inspection | None = None,
    must_exist: bool = True,
    packages: bool = True,
    is_new: bool = True,
    weights: bool = True,
    resumed: Resumed | None = None,
    measures: Measures | None = None,
    report: Report = quiet,
) -> Prepared:
    """Prepare a composed config for its start, and refuse all that needs no GPU, network or decoding to be seen.

    Args:
        composed: The config, and the origins of its values for messages.
        devices: The devices to plan for; None selects those of this machine that CUDA can use.
        seen: Its images, if they were listed before.
        must_exist: Require the images on this machine. Otherwise the counts in the config replace missing images.
        packages: The run has the packages of this machine, such as those of its logger.
        is_new: Its folder must not exist on this machine.
        weights: Load `model.weights`, from a library only with `must_exist`.
        resumed: An existing run. Its weights, model and precision are fixed and not checked again.
        measures: What a start measures, after the FFCV files that the run reads are written; None refuses
            `batch_size=auto`.
        report: Called while images are read and a model is checked.

    Raises UserError if a value cannot work, first by what is known without the images, before any file is written.
    Raises MachineError if torch cannot use the visible GPUs.
    """
    config = composed.config
    # note: before the images are listed, which may take minutes
    _problems(config, resumed, measures, packages=packages, is_new=is_new).settle()
    planned = partial(
        _planned, composed, must_exist=must_exist, packages=packages, weights=weights, resumed=resumed, report=report
    )
    prepared = planned(devices, seen, measures)
    if measures is not None and write_first(prepared.plan.config, prepared.images, report):
        batch = prepared.plan.batch_size
        prepared = planned(prepared.devices, None, measures._replace(batch=lambda *_: batch))
    if packages:
        of_memory = memory_notes(prepared.plan, prepared.devices)
        prepared = replace(prepared, notes=[*of_memory, *note_on_files(composed, prepared.plan), *prepared.notes])
    if measures is None:
        return prepared
    prepared = measures.steps(prepared)
    return prepared if config.stop.minutes is None else _in_time(prepared, composed.origins, measures.in_time(prepared))


def prepare_plan(composed: Composed, seen: Inspection | None = None, report: Report = quiet) -> Prepared:
    """Prepare a run on this machine, or on the `hardware` of the command line, whose images may be missing.

    Raises UserError as `prepare`.
    """
    here = composed.origins.get("hardware.name") != COMMAND_LINE
    is_new, devices = here and composed.config.launch.nnodes == 1, planned_here(composed)
    return prepare(composed, devices=devices, seen=seen, must_exist=False, packages=here, is_new=is_new, report=report)


def _problems(
    config: RunConfig, resumed: Resumed | None, measures: Measures | None, *, packages: bool, is_new: bool
) -> Problems:
    """Return what a run cannot have, by its config and the run folders of this machine."""
    problems, nodes = Problems(), config.launch.nnodes
    if resumed is None and is_new and config.run_name is not None:
        with problems.collected():
            check_new(Path(config.runs), config.run_name)
    if resumed is None and config.checkpoint.mirror is not None and config.run_name is None:
        message = "needs run_name=NAME, which becomes the name of the run in the bucket"
        problems.append(Problem(message, "checkpoint.mirror", config.checkpoint.mirror))
    if resumed is None and config.stop.minutes is not None and nodes > 1:
        message = "is measured on one node; set epochs, or launch.nnodes=1"
        problems.append(Problem(message, "stop.minutes", config.stop.minutes))
    if measures is not None and nodes > 1 and config.run_name is None:
        message = f"is required with launch.nnodes={nodes}; set run_name=NAME, the same on all nodes"
        problems.append(Problem(message, "run_name", None))
    if packages:
        with problems.collected():
            config.logger.check()
        if config.checkpoint.mirror is not None:
            with problems.collected():
                check_protocol(config.checkpoint.mirror)
    return problems


def _planned(
    composed: Composed,
    devices: Devices | None,
    seen: Inspection | None,
    measures: Measures | None,
    *,
    must_exist: bool,
    packages: bool,
    weights: bool,
    resumed: Resumed | None,
    report: Report,
) -> Prepared:
    """List the images, choose the devices, plan and check the run."""
    config, origins = with_absolute_paths(composed.config), composed.origins
    skipped = None if resumed is None else resumed.skipped
    listed = seen and seen.of(config)
    data = listed or inspect_data(config, must_exist=must_exist, skipped=skipped, report=report)
    config, devices = data.config, devices or decide(data.config.launch)
    config = with_decoder(config) if packages else config
    config = with_batch(config, devices, None if measures is None else measures.batch)
    plan = plan_for(config, devices.processes * config.launch.nnodes)
    if resumed is not None:
        resumed.refuse(plan)
    check(plan, origins, devices.kind)
    pretrained, of_weights = None, list[str]()
    if resumed is None:
        if weights:
            config, pretrained, of_weights = with_weights(plan.config, data.classes, origins, must_exist=must_exist)
            plan = replace(plan, config=config)
            if pretrained:
                check(plan, origins, devices.kind)
        plan, of_network = with_checked_network(plan, origins, report)
        of_weights += of_network
        plan = with_precision(plan, devices)
    of_batch = [note_on_batch(plan)] if data.config.batch_size == "auto" else []
    # note: what the data lose is printed first
    messages = [*dict.fromkeys([*data.notes, *composed.notes, *of_weights, *of_batch, *notes(plan), *devices.notes])]
    splits = {split.split: split.facts() for split in data.splits}
    return Prepared(plan, devices, data.skipped, pretrained, messages, splits, data.splits, data.seen, packages)


def planned_here(composed: Composed) -> Devices:
    """Describe a run's devices on this machine, or on the `hardware` of the command line, if torch can use its GPUs."""
    config = composed.config
    is_chosen = COMMAND_LINE in (composed.origins.get("hardware.name"), composed.origins.get("hardware.gpus"))
    devices = planned(config.launch, config.hardware.gpus if is_chosen else None)
    if is_chosen and devices.kind == "cuda":
        check_gpu(config.hardware)
    return devices


def write_images(prepared: Prepared, folder: RunFolder) -> None:
    """Write the index of the images into a run folder, for all ranks; draws the built-in ones on first use.

    Raises UserError if they are missing.
    """
    config = prepared.plan.config
    if config.dataloader.reads:
        ensure_folder(config.dataset)
    if images := prepared.images or source_of(config).list(config, prepared.skipped):
        write_index(folder.index, images)


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


def left_to_the_start(prepared: Prepared) -> Iterator[str]:
    """Yield what `prepare` could not check here, so that only the start of the run does."""
    config, launch = prepared.plan.config, prepared.plan.config.launch
    if not prepared.images_seen:
        yield f"the images, dataset.path={config.dataset.path}"
    test_path = config.dataset.test_path
    if test_path is not None and not (prepared.images_seen and Path(test_path).exists()):
        yield f"the images, dataset.test_path={test_path}"
    if not prepared.packages_seen:
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
