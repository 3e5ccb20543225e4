"""Prepare a composed config for its start: data, devices, plan, checks, precision and pretrained weights.

Torch is imported only for GPUs, pretrained weights, and models that are not torchvision's and were not checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.cache import cached, source_digest
from launcher.config.choices import LIBRARIES
from launcher.config.compose import Composed
from launcher.config.gpus import check_gpu
from launcher.config.layers import COMMAND_LINE
from launcher.config.resolved import as_mapping, with_absolute_paths
from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.data.builtin import ensure_folder
from launcher.data.index import Images, write_index
from launcher.data.inspection import inspect_data
from launcher.data.jpeg import with_decoder
from launcher.data.loaders.base import loader_of
from launcher.data.workers import Report, quiet
from launcher.disk import is_there
from launcher.errors import Problem, UserError
from launcher.launch.devices import Devices, decide, planned, with_precision
from launcher.models.resnet import TorchvisionModel
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan, plan_for
from launcher.plan.step_kinds import other_views
from launcher.records.run_folder import RunFolder
from launcher.weights.card import find_weights, problem

if TYPE_CHECKING:
    from launcher.weights.pretrained import Pretrained

# What decides whether a model is accepted.
_SOURCES = ("algorithms/*.py", "models/*.py", "launch/model_check.py")


class Measures(NamedTuple):
    """What is measured before a run is written.

    batch: for `batch_size=auto`, the largest batch of a config with counted images. in_time: the config with which a
    prepared run ends within `stop.minutes`. Both raise UserError if there is none. steps: the run with `auto` of
    compile and cuda_graphs replaced.
    """

    batch: Callable[[RunConfig, Devices], int]
    in_time: Callable[[Prepared], RunConfig]
    steps: Callable[[Prepared], Prepared] = lambda prepared: prepared


@dataclass(frozen=True)
class Prepared:
    """A run that can start. The config of `plan` is final: image counts, precision and normalization are set.

    `skipped` maps unreadable images to the reasons; `notes` are messages for the user. `images` are those of training,
    validation and test if they are listed, and `splits` has what was seen, taken and dropped for each split.
    `images_seen` is false if counts replace missing images.
    """

    plan: Plan
    devices: Devices
    skipped: dict[str, str] = field(default_factory=dict)
    pretrained: Pretrained | None = None
    notes: Sequence[str] = ()
    splits: Mapping[str, Any] = field(default_factory=dict)
    images: Sequence[Images] = ()
    images_seen: bool = True


def prepare_run(
    composed: Composed,
    *,
    devices: Devices | None = None,
    must_exist: bool = True,
    packages: bool = True,
    skipped: Collection[str] | None = None,
    with_weights: bool = False,
    refuse: Callable[[Plan], None] = lambda plan: None,
    measures: Measures | None = None,
    report: Report = quiet,
) -> Prepared:
    """Prepare a composed config for its start, and check it.

    Args:
        composed: The config, and the origins of its values for messages.
        devices: The devices to plan for; None selects those of this machine that CUDA can use.
        must_exist: Require the images on this machine. Otherwise the counts in the config replace missing images.
        packages: The run has the packages of this machine, so that its decoder must be installed.
        skipped: The images that an existing run skips. Its model and precision are fixed and not checked again.
        with_weights: Load `model.weights`, from a library only with `must_exist`.
        refuse: Called with the plan before the checks; raises UserError if an existing run cannot continue with it.
        measures: What `batch_size=auto` measures; None refuses that.
        report: Called while images are read and a model is checked.

    Raises UserError if a value cannot work, before any file is written. Raises MachineError if torch cannot use the
    visible GPUs.
    """
    config = with_absolute_paths(composed.config)
    seen = composed.inspected and composed.inspected.of(config)
    data = seen or inspect_data(config, must_exist=must_exist, skipped=skipped, report=report)
    config, devices = data.config, devices or decide(data.config.launch)
    decoded = with_decoder(config) if packages else config
    config = _with_batch(decoded if must_exist else config, devices, measures)
    plan = plan_for(config, devices.processes * config.launch.nnodes)
    refuse(plan)
    check(plan, composed.origins, devices.kind)
    pretrained, of_weights = None, list[str]()
    if skipped is None:
        if with_weights:
            plan, pretrained, of_weights = _with_weights(plan, data.classes, composed.origins, devices, must_exist)
        plan = _with_checked_model(plan, composed.origins, devices, report)
    of_batch = [_measured_note(plan)] if data.config.batch_size == "auto" else []
    # note: what the data lose is printed first
    messages = [*dict.fromkeys([*data.notes, *composed.notes, *of_weights, *of_batch, *notes(plan), *devices.notes])]
    splits = {split.split: split.facts() for split in data.splits}
    return Prepared(plan, devices, data.skipped, pretrained, messages, splits, data.splits, data.seen)


def _with_checked_model(plan: Plan, origins: Mapping[str, str], devices: Devices, report: Report) -> Plan:
    """Check a new run's model, and return the plan with its precision; raises as `_check_model`."""
    # note: torchvision's models fail only in the batch norm of a single image
    if not isinstance(plan.config.model, TorchvisionModel) or plan.rank_batch == plan.accumulation:
        _check_model(plan, origins, report)
    return with_precision(plan, devices)


def _with_batch(config: RunConfig, devices: Devices, measures: Measures | None) -> RunConfig:
    """Set the measured batch size if it is "auto"; raises UserError without `measures`."""
    if config.batch_size != "auto":
        return config
    if measures is None:
        message = "is measured only when `train` starts a run; set a number here"
        raise UserError(Problem(message, "batch_size", "auto"))
    return replace(config, batch_size=measures.batch(config, devices))


def _with_weights(
    plan: Plan, classes: list[str] | None, origins: Mapping[str, str], devices: Devices, must_exist: bool
) -> tuple[Plan, Pretrained | None, list[str]]:
    """Return the plan with what pretrained weights and a teacher set, these weights, and notes on both."""
    pretrained = _pretrained(plan.config, classes, origins, must_exist)
    config, messages = (pretrained.config, [*pretrained.notes]) if pretrained else (plan.config, [])
    if config.algorithms.teaching:
        from launcher.weights.teacher import with_teacher

        config, of_teacher = with_teacher(config, classes, with_weights=must_exist)
        messages += [of_teacher] if of_teacher else []
    plan = replace(plan, config=config)
    if pretrained:
        check(plan, origins, devices.kind)
    return plan, pretrained, messages


def _check_model(plan: Plan, origins: Mapping[str, str], report: Report) -> None:
    """Check the network, unless this code accepted it with the same algorithms, image sizes and libraries.

    Raises UserError if the network cannot be built, or an algorithm or an image size does not suit it.
    """

    def check_now() -> bool:
        # note: the import of torch and timm takes seconds
        report(f"checking {plan.config.model.architecture} for the first time", 0, 1)
        from launcher.launch.model_check import check_model

        check_model(plan, origins)
        return True

    config, values = plan.config, as_mapping(plan.config)
    facts = {
        **{key: values[key] for key in ("model", "algorithms", "loss", "code_sha256")},
        "outputs": config.task.outputs(config.dataset),
        "channels": config.dataset.channels,
        "sizes": [plan.view(steps[0]) for steps in plan.of_equal_view(range(plan.total_steps))],
        "other_sizes": [view for view, *_ in other_views(plan)],
        "one_image": plan.rank_batch == plan.accumulation,
        "evaluation": plan.evaluation_view,
        "libraries": [version(name) for name in ("torch", "torchvision", "timm")],
        "source": source_digest(Path(__file__).parents[1], _SOURCES),
    }
    cached("models", facts, bool, check_now)


def write_images(prepared: Prepared, folder: RunFolder) -> None:
    """Write the index of the images into a run folder, for all ranks; draws the built-in ones on first use.

    Raises UserError if they are missing.
    """
    config, loader = prepared.plan.config, loader_of(prepared.plan.config)
    if loader.reads:
        ensure_folder(config.dataset)
    if images := prepared.images or loader.images(config, prepared.skipped):
        write_index(folder.index, images)


def write_teacher(config: RunConfig, folder: RunFolder) -> None:
    """Write the teacher of a run, if it has one, into its folder, unless it is there.

    Raises UserError if it cannot be read, or the run has had another one.
    """
    if config.algorithms.teaching and not is_there(folder.teacher):
        from launcher.weights.teacher import copy_teacher

        copy_teacher(config, folder.teacher)


def _measured_note(plan: Plan) -> str:
    scaled = plan.config.optimizer.scale_lr == "linear"
    follows = "is scaled with it" if scaled else "stays as it is (optimizer.scale_lr=linear scales it)"
    most = (
        f"{count_of(plan.rank_batch, 'image')} a GPU, the largest power of two that fits and leaves an epoch ten steps"
    )
    return f"batch_size=auto is {plan.batch_size}: {most}; the learning rate {follows}"


def planned_here(composed: Composed) -> Devices:
    """Describe a run's devices on this machine, or on the `hardware` of the command line, if torch can use its GPUs."""
    config = composed.config
    is_chosen = COMMAND_LINE in (composed.origins.get("hardware.name"), composed.origins.get("hardware.gpus"))
    devices = planned(config.launch, config.hardware.gpus if is_chosen else None)
    if is_chosen and devices.kind == "cuda":
        check_gpu(config.hardware)
    return devices


def _pretrained(
    config: RunConfig, classes: list[str] | None, origins: Mapping[str, str], must_exist: bool
) -> Pretrained | None:
    """Load `model.weights` if it is set; without `must_exist` download nothing."""
    if config.model.weights is None or (config.model.downloads and not must_exist):
        return None
    trained = None if config.model.weights in LIBRARIES else find_weights(config.model.weights)[1]
    theirs, ours = trained.model.architecture if trained else None, config.model.architecture
    # note: timm has other architectures with the same tensors
    if trained and trained.model.library == config.model.library == TorchvisionModel.library and theirs != ours:
        raise problem(config.model.weights, f"weights of {theirs}, not {ours}; set model={theirs}")
    from launcher.weights.pretrained import pretrained_weights

    typed = {key for key, origin in origins.items() if origin == COMMAND_LINE}
    return pretrained_weights(config, classes, typed=typed)


def few_of(notes: Sequence[str]) -> list[str]:
    """Return the notes to print before a run: three, of more than these the first two and the number of the others."""
    more = f"{len(notes) - 2} more, which `train plan` prints with the words of this run, and logs/rank-0.log has"
    return [*notes] if len(notes) <= 3 else [*notes[:2], more]
