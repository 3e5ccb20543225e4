"""Synthetic counts of steps, in place of traces."""

from launcher.plan.counted import CountedStep, Work
from launcher.plan.plan import Plan
from launcher.plan.step_kinds import step_kinds, step_samples


def made_up(plan: Plan) -> list[CountedStep]:
    """Return steps of 1 kB, 1 MFLOP and 1,100 bytes of memory per pixel of an image, with two passes for SAM."""
    counted = []
    for sample in step_samples(step_kinds(plan), sizes=2):
        pixels = plan.rank_batch * sample.kind.view**2
        passes = 2 if "sam" in sample.kind.acting else 1
        works = [Work("convolution", 100 * pixels, 10**6 * pixels, passes), Work("other", 900 * pixels, 0, passes)]
        counted.append(
            CountedStep(sample.kind.view, sample.kind.acting, works, works, 10**8, 1100 * pixels // plan.accumulation)
        )
    return counted
