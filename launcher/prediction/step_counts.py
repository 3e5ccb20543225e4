"""The counts of a step's kernels, cached by a digest of what the step computes.

Tracing (`step_trace`) needs torch and seconds; reading the cache needs neither.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from launcher.config.resolved import as_mapping
from launcher.files.cache import cached, source_digest, stored
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import StepSample, step_kinds, step_samples
from launcher.prediction.counted import CountedStep

# The keys that determine what a step computes, besides batch and image sizes; and the packages.
_KEYS = ("model", "loss", "optimizer", "algorithms", "image", "code_sha256")
_SOURCES = (
    *(f"launcher/{package}/*.py" for package in ("algorithms", "losses", "models", "optimizers", "tasks", "training")),
    *(f"launcher/prediction/{name}.py" for name in ("counted", "step_trace", "trace", "meta_tensors", "fusion")),
)
_IMAGE_SIZES = 2
_CACHE = "steps"


def counted_steps(plan: Plan) -> list[CountedStep]:
    """Return the kinds of steps of a run, each at its smallest and largest image size; traced once, then cached."""

    def trace() -> list[CountedStep]:
        from launcher.prediction.step_trace import trace_steps  # note: imports torch, and takes seconds

        return trace_steps(plan, traced_samples(plan))

    return cached(_CACHE, computed(plan), list[CountedStep], trace)


def cached_steps(plan: Plan) -> list[CountedStep] | None:
    """Return the cached steps of a run; None if there are none."""
    return stored(_CACHE, computed(plan), list[CountedStep])


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
