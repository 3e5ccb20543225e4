"""From a composed config to a run that can start: its data, devices, plan, checks, precision and pretrained weights.

Torch is imported for GPUs, for models that are not torchvision's and for pretrained weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from launcher.config.compose import Composed
from launcher.config.layers import COMMAND_LINE
from launcher.config.models import TorchvisionModel
from launcher.config.schema import RunConfig
from launcher.data.inspection import inspect_data
from launcher.data.sources.source import Report, quiet
from launcher.launch.devices import Devices, decide, planned, with_precision
from launcher.plan.checks import check, notes
from launcher.plan.plan import Plan, plan_for

if TYPE_CHECKING:
    from launcher.weights.pretrained import Pretrained


@dataclass(frozen=True)
class Prepared:
    """A run that can start. The config of `plan` is final: counted, with its precision and its weights' normalization.

    `skipped` are the images that cannot be read, and why; `notes` are lines for the user.
    """

    plan: Plan
    devices: Devices
    skipped: dict[str, str] = field(default_factory=dict)
    pretrained: Pretrained | None = None
    notes: Sequence[str] = ()


def prepare_run(
    composed: Composed,
    *,
    devices: Devices | None = None,
    must_exist: bool = True,
    skipped: Collection[str] | None = None,
    with_weights: bool = False,
    refuse: Callable[[Plan], None] = lambda plan: None,
    report: Report = quiet,
) -> Prepared:
    """Make a composed config a run that can start, and check it.

    Args:
        composed: The config, and where its values come from, for the messages.
        devices: Those to plan for; None takes what this machine has, and asks CUDA what it can use.
        must_exist: The images must be on this machine. Without it, counts in the config replace images that are not.
        skipped: Images that a run that is there already skips. Its model and precision are settled, and not checked.
        with_weights: Load what `model.weights` names.
        refuse: Called with the plan before the checks; raises UserError where the run that is there forbids it.
        report: Called while images are read.

    Raises:
        UserError: something cannot work; nothing has been written then.
        MachineError: GPUs are there, and torch cannot use them.
    """
    data = inspect_data(composed.config, must_exist=must_exist, skipped=skipped, report=report)
    devices = devices or decide(data.config.launch)
    plan = plan_for(data.config, devices.processes * data.config.launch.nnodes)
    refuse(plan)
    check(plan, composed.origins)
    pretrained = None
    if skipped is None:
        if not isinstance(plan.config.model, TorchvisionModel):
            from launcher.training.model_check import check_model  # note: seconds, for torch and timm

            check_model(plan, composed.origins)
        plan = with_precision(plan, devices)
        pretrained = _pretrained(plan.config, data.classes, composed.origins) if with_weights else None
    if pretrained is not None:
        plan = replace(plan, config=pretrained.config)
    of_weights = pretrained.notes if pretrained else []
    said = [*composed.notes, *data.notes, *of_weights, *notes(plan), *devices.notes]
    return Prepared(plan, devices, data.skipped, pretrained, said)


def planned_here(composed: Composed) -> Devices:
    """Describe the devices that a run would have on this machine, or on the one that the command line names."""
    named = COMMAND_LINE in (composed.origins.get("hardware.name"), composed.origins.get("hardware.gpus"))
    return planned(composed.config.launch, composed.config.hardware.gpus if named else None)


def _pretrained(config: RunConfig, classes: list[str] | None, origins: Mapping[str, str]) -> Pretrained | None:
    """Load what `model.weights` names, if anything."""
    if config.model.weights is None:
        return None
    from launcher.weights.pretrained import pretrained_weights

    keep = COMMAND_LINE in (origins.get("dataset.mean"), origins.get("dataset.std"))
    return pretrained_weights(config, classes, keep_normalization=keep)
