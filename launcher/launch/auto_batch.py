"""`batch_size=auto`: what must hold to measure it, and the note on its result."""

from collections.abc import Callable
from dataclasses import replace

from launcher.config.schema import RunConfig
from launcher.counts import count_of
from launcher.errors import Problem, UserError
from launcher.launch.devices import Devices
from launcher.plan.plan import Plan

# Images that the search starts with, and steps that an epoch keeps.
FEWEST_IMAGES = 2
LEAST_STEPS = 10


def with_batch(config: RunConfig, devices: Devices, measure: Callable[[RunConfig, Devices], int] | None) -> RunConfig:
    """Set the measured batch size if it is "auto"; raises UserError if it cannot be measured."""
    if config.batch_size != "auto":
        return config
    reason = _why_unmeasured(config, devices)
    if reason is None and measure is not None:
        return replace(config, batch_size=measure(config, devices))
    message = reason or "is measured only when `train` starts a run; set a number here"
    raise UserError(Problem(message, "batch_size", "auto"))


def _why_unmeasured(config: RunConfig, devices: Devices) -> str | None:
    if devices.kind != "cuda":
        where = "the CPU" if devices.kind == "cpu" else "an Apple GPU"
        return f"fills the memory of GPUs, and this run trains on {where}; set a number such as 64"
    if config.launch.nnodes > 1:
        return "is measured on one node; set a number, or launch.nnodes=1"
    if config.device_batch_size is not None:
        return f"device_batch_size={config.device_batch_size} limits the memory of a step already; set a number"
    if (config.dataset.train_samples or 0) < FEWEST_IMAGES * LEAST_STEPS * devices.processes:
        return "there are too few images to choose a batch for; set a number"
    return None


def note_on_batch(plan: Plan) -> str:
    """Return a note on the batch that was measured."""
    scaled = plan.config.optimizer.scale_lr == "linear"
    follows = "is scaled with it" if scaled else "stays as it is (optimizer.scale_lr=linear scales it)"
    most = (
        f"{count_of(plan.rank_batch, 'image')} a GPU, the largest power of two that fits and leaves an epoch ten steps"
    )
    return f"batch_size=auto is {plan.batch_size}: {most}; the learning rate {follows}"
