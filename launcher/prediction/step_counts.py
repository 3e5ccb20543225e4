"""Count the kernels of a run's steps, cached by a digest of what the steps compute."""

from launcher.files.cache import cached
from launcher.plan.counted import CACHE, CountedStep, computed, traced_samples
from launcher.plan.plan import Plan


def counted_steps(plan: Plan) -> list[CountedStep]:
    """Return the kinds of steps of a run, each at its smallest and largest image size; traced once, then cached."""

    def trace() -> list[CountedStep]:
        from launcher.prediction.step_trace import trace_steps  # note: imports torch, and takes seconds

        return trace_steps(plan, traced_samples(plan))

    return cached(CACHE, computed(plan), list[CountedStep], trace)
