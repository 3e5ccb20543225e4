"""What is counted of a run's steps, read from the cache; imports no torch."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher.config.resolved import as_mapping
from launcher.files.cache import source_digest, stored
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepSample, step_kinds, step_samples

# The keys that determine what a step computes, besides batch and image sizes; and the packages.
_KEYS = ("model", "loss", "optimizer", "algorithms", "image", "code_sha256")
_SOURCES = (
    *(f"launcher/{package}/*.py" for package in ("algorithms", "losses", "models", "optimizers", "tasks", "training")),
    *(f"launcher/prediction/{name}.py" for name in ("step_trace", "trace", "meta_tensors", "fusion")),
    "launcher/plan/counted.py",
)
_IMAGE_SIZES = 2
CACHE = "steps"


@dataclass(frozen=True)
class Work:
    """Equal kernels: their kind, the bytes that each moves, its matrix operations, and their number.

    kind: convolution, depthwise, matrix, eigenvectors, qr, batch norm, pool, strided, or other. `Call` explains the
    last three fields.
    """

    kind: str
    moved: int
    operations: int
    count: int
    group_width: int = 0
    aligned: bool = True
    fill: float = 1.0


@dataclass(frozen=True)
class CountedStep:
    """One kind of step on a rank: its eager and fused kernels, the bytes of gradients, and the peak memory."""

    view: int
    acting: tuple[str, ...]
    eager: list[Work]
    fused: list[Work]
    gradient_bytes: int
    peak_bytes: int


def cached_steps(plan: Plan) -> list[CountedStep] | None:
    """Return the cached steps of a run; None if there are none."""
    return stored(CACHE, computed(plan), list[CountedStep])


def step_bytes(plan: Plan) -> int | None:
    """Return the peak bytes of a run's steps on a device, weights and optimizer included; None if none were counted."""
    steps = cached_steps(plan)
    return max(step.peak_bytes for step in steps) if steps else None


def fitting_batch(plan: Plan, step: float, memory: float) -> int | None:
    """Return the largest part of a rank's images whose step fits into the memory; None if not even one does.

    step: what the step takes of it with all images of a micro-batch, in the unit of `memory`.
    """
    most = int(plan.rank_batch // plan.accumulation * memory / step)
    return next((images for images in range(most, 0, -1) if plan.rank_batch % images == 0), None)


def computed(plan: Plan) -> dict[str, Any]:
    """Return what a plan's steps compute, independent of the run's name and length."""
    values = as_mapping(plan.config)
    kinds = [(one.kind.view, plan.loaded_size(one.steps[-1]), one.kind.acting) for one in traced_samples(plan)]
    return {
        **{key: values[key] for key in _KEYS},
        "kinds": kinds,
        "batch": (plan.rank_batch, plan.accumulation),
        "classes": plan.config.dataset.classes,
        "mixed": plan.config.precision != "fp32",
        "torch": version("torch"),
        "source": source_digest(Path(__file__).parents[2], _SOURCES),
    }


def traced_samples(plan: Plan) -> list[StepSample]:
    """List each kind of step at its smallest and largest size."""
    return step_samples(step_kinds(plan), sizes=_IMAGE_SIZES)
