"""The counts of a step's kernels, cached by a digest of what the step computes.

Tracing (`step_trace`) needs torch and seconds; reading the cache needs neither.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from launcher import atomic, paths
from launcher.config.resolved import as_mapping
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepSample, step_kinds, step_samples

# The keys that determine what a step computes, besides batch and image sizes; and the packages.
_KEYS = ("model", "loss", "optimizer", "algorithms", "image")
_SOURCES = (
    *(f"launcher/{package}/*.py" for package in ("algorithms", "models", "optimizers", "training")),
    *(f"lab/predict/{name}.py" for name in ("step_trace", "trace", "meta_tensors", "fusion")),
)
_IMAGE_SIZES = 2


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

    image_size: int
    acting: tuple[str, ...]
    eager: list[Work]
    fused: list[Work]
    gradient_bytes: int
    peak_bytes: int


_KEPT = TypeAdapter(list[CountedStep])


def counted_steps(plan: Plan) -> list[CountedStep]:
    """Return the kinds of steps of a run, each at its smallest and largest image size; traced once, then cached."""
    key = steps_key(plan)
    cached = cached_steps(key)
    if cached is not None:
        return cached
    from lab.predict.step_trace import trace_steps  # note: imports torch, and takes seconds

    steps = trace_steps(plan, traced_samples(plan))
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, json.dumps([asdict(step) for step in steps]))
    return steps


def cached_steps(key: str) -> list[CountedStep] | None:
    """Return the cached steps; None if there are none."""
    try:
        return _KEPT.validate_json(_path(key).read_bytes())
    except (OSError, ValidationError):
        return None


def steps_key(plan: Plan) -> str:
    """Return a digest of what a plan's steps compute, independent of the run's name and length."""
    values = as_mapping(plan.config)
    kinds = [(one.kind.image_size, plan.loaded_size(one.steps[-1]), one.kind.acting) for one in traced_samples(plan)]
    computed = {
        **{key: values[key] for key in _KEYS},
        "kinds": kinds,
        "batch": (plan.rank_batch, plan.accumulation),
        "classes": plan.config.dataset.classes,
        "mixed": plan.config.precision != "fp32",
        "torch": version("torch"),
    }
    source = paths.source_digest(Path(__file__).parents[2], _SOURCES)
    return hashlib.sha256((json.dumps(computed, sort_keys=True) + source).encode()).hexdigest()[:32]


def traced_samples(plan: Plan) -> list[StepSample]:
    """List each kind of step at its smallest and largest size."""
    return step_samples(step_kinds(plan), sizes=_IMAGE_SIZES)


def _path(key: str) -> Path:
    return paths.cache() / "steps" / f"{key}.json"
